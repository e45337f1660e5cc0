"""A split bundle with weights in blocks is run by one session, which holds the one packed copy there is."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_checkpoints import QWEN, RWKV

from rowpack import BuildRequest, build, build_stages
from rowpack.cli import main
from rowpack.engines.backend import EngineBuild, EngineOrder
from rowpack.engines.options import EngineOptions
from rowpack.engines.ort import OrtBackend, OrtBuilder
from rowpack_loaders import RowpackError, decoder, load, open_bundle
from rowpack_loaders.compatibility.memory_need import memory_need
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.model_description import DECODE, PREFILL, describe_model
from rowpack_loaders.runtimes import load_runtime, ort
from rowpack_loaders.selftest import run_self_test
from rowpack_loaders.session import Session
from rowpack_loaders.validation import validate

PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, 2000, 66)]
ROUNDING = 0.1
"""What eight-bit rows move a logit by between graphs that mean the same, relative to the largest."""


def built(folder: Path, name: str, **changes: Any) -> Path:
    options: dict[str, Any] = {"quantization": "int4", "decoder_engine_layout": "split", "model_id": "trained"}
    checkpoint = changes.pop("checkpoint", QWEN)
    return build(BuildRequest(checkpoint, folder / f"{name}.bundle", **options | changes)).path


WAYS: dict[str, dict[str, Any]] = {"fused": {}, "branched": {"lowering": "plain"}, "rwkv": {"checkpoint": RWKV}}
"""Prefill graphs without padded rows: by an operator of the runtime, by a branch for one row, by one of WKV."""


@pytest.fixture(scope="module", params=WAYS)
def bundle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A trained model in int4, split."""
    return built(tmp_path_factory.mktemp("one"), "int4", **WAYS[request.param])


def manifest_of(path: Path) -> dict[str, Any]:
    with open_bundle(path) as opened:
        return json.loads(json.dumps(opened.manifest))


def sessions(path: Path, **options: Any) -> set[int]:
    runtime: Any = load(path, threads=1, **options).runtime
    return {id(loaded.session) for loaded in runtime._engines.values()}


def deviation(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def steps(session: Session, count: int = 5) -> list[Any]:
    rows = [session.prefill(PROMPT).copy()]
    for token in range(count):
        rows.append(session.step(100 + token).copy())
    return rows


class TestWhatTheManifestSays:
    def test_the_prefill_engine_is_marked_and_one_copy_is_counted(self, bundle: Path) -> None:
        manifest = manifest_of(bundle)
        assert manifest["engines"]["prefill"]["serves_decode"] is True
        assert "serves_decode" not in manifest["engines"]["decode"]
        decision = manifest["layout_decision"]
        assert decision["copies"] == 1
        assert decision["needed_bytes"] == max(decision["engine_weight_bytes"].values())
        assert validate(bundle).errors == []
        need = memory_need(manifest)
        assert need.prefill_weights == 0
        assert need.pair_bytes == need.decode_bytes
        assert decoder.second_engine_bytes(describe_model(manifest)) == 0

    def test_inspect_tells_it(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(bundle)]) == 0
        shown = capsys.readouterr().out
        assert shown.count("; serves decode") == 1
        assert "one copy for both engines" in shown

    def test_without_the_mark_two_copies_are_counted(self, bundle: Path) -> None:
        manifest = manifest_of(bundle)
        manifest["engines"]["prefill"]["serves_decode"] = False
        private = manifest["engines"]["prefill"]["resident_bytes"]["private"]
        assert memory_need(manifest).prefill_weights == private > 0
        assert decoder.second_engine_bytes(describe_model(manifest)) == private

    @pytest.mark.parametrize(
        ("changes", "lowering"),
        [
            ({"quantization": None}, "plain"),
            ({"quantization": None, "lowering": "auto"}, "fused"),
            ({"decoder_engine_layout": "single"}, "fused"),
        ],
    )
    def test_other_bundles_are_not_marked(self, tmp_path: Path, changes: dict[str, Any], lowering: str) -> None:
        manifest = manifest_of(built(tmp_path, "other", verify=False, **changes))
        for engine in manifest["engines"].values():
            assert "serves_decode" not in engine
            assert engine["lowering"] == lowering

    def test_a_device_for_one_copy_gets_both_engines(self, tmp_path: Path) -> None:
        manifest = manifest_of(built(tmp_path, "large", verify=False))
        decision = manifest["layout_decision"]
        both = decision["needed_bytes"] + manifest["engines"]["prefill"]["resident_bytes"]["private"]
        capacity = both * 100 // 80 - 1
        options = {"decoder_engine_layout": "auto", "target_memory_bytes": capacity, "verify": False}
        assert manifest_of(built(tmp_path, "fits", **options))["layout_decision"]["reason"] == "fits"
        small = {**options, "target_memory_bytes": decision["needed_bytes"] * 100 // 80 - 1}
        assert manifest_of(built(tmp_path, "small", **small))["layout_decision"]["reason"] == "does_not_fit"

    def test_the_lowering_asked_for_is_the_one_recorded(self, tmp_path: Path) -> None:
        assert BuildRequest(QWEN, tmp_path, quantization="int8").mixer_lowering == "auto"
        assert BuildRequest(QWEN, tmp_path, quantization="int8", lowering="plain").mixer_lowering == "plain"
        assert BuildRequest(QWEN, tmp_path).mixer_lowering == "plain"
        path = built(tmp_path, "plain", lowering="plain", verify=False)
        assert manifest_of(path)["engines"]["prefill"]["lowering"] == "plain"
        assert manifest_of(path)["engines"]["prefill"]["requires"] == ["com.microsoft.MatMulNBits"]
        default = manifest_of(built(tmp_path, "default", verify=False))["engines"]["prefill"]
        assert "com.microsoft.LinearAttention" in default["requires"]
        with open_bundle(path) as opened:
            trailer: Any = opened.trailer()
        assert '"lowering": "plain"' in json.dumps(trailer["provenance"])


class TestOneSession:
    def test_serves_both_roles_unless_prefill_is_left_out(self, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[str] = []
        real = decoder._read_engine

        def remember(opened: Any, model: Any, role: str, weights: Any) -> Any:
            read.append(role)
            return real(opened, model, role, weights)

        monkeypatch.setattr(decoder, "_read_engine", remember)
        for layout, roles in (("auto", [PREFILL]), ("split", [PREFILL]), ("single", [DECODE])):
            read.clear()
            assert len(sessions(bundle, layout=layout)) == 1
            assert read == roles

    def test_answers_as_the_decode_engine_does(self, bundle: Path) -> None:
        one = steps(load(bundle, threads=1).session())
        alone = steps(load(bundle, threads=1, layout="single").session())
        assert max(map(deviation, one, alone)) <= ROUNDING

    def test_snapshots_and_resets(self, bundle: Path) -> None:
        session = load(bundle, threads=1).session()
        session.prefill(PROMPT)
        kept = session.snapshot()
        first = [session.step(token).copy() for token in (7, 8, 9)]
        session.restore(kept)
        assert all(np.array_equal(session.step(token), row) for token, row in zip((7, 8, 9), first, strict=True))
        session.reset()
        session.prefill(PROMPT)
        assert np.array_equal(session.step(7), first[0])

    def test_sequences_in_threads(self, bundle: Path) -> None:
        loaded = load(bundle, threads=1)
        prompts = [PROMPT, PROMPT[:3], PROMPT[10:40], PROMPT[::-1]]
        expected = [loaded.generate(prompt, 6).token_ids for prompt in prompts]
        found: dict[int, Any] = {}

        def generate(index: int) -> None:
            found[index] = loaded.generate(prompts[index], 6).token_ids

        threads = [threading.Thread(target=generate, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[index] for index in range(len(prompts))] == expected

    @pytest.mark.parametrize("layout", ["auto", "single"])
    def test_passes_the_self_test(self, bundle: Path, layout: Any) -> None:
        report = run_self_test(load(bundle, threads=1, layout=layout))
        assert report.passed
        assert {result.mode for result in report.results} == (
            {"token-loop"} if layout == "single" else {"token-loop", "chunked"}
        )

    @pytest.mark.parametrize("role", [DECODE, PREFILL])
    def test_is_checked_against_both_records(self, bundle: Path, role: str) -> None:
        with open_bundle(bundle) as opened:
            engine = opened.read_section("prefill.onnx", limit_bytes=2**28)
            section: MappedSection = opened.container.mapped_section("weights.safetensors")
        manifest = manifest_of(bundle)
        load_runtime("ort", describe_model(manifest), {PREFILL: engine}, section)
        for tensor in manifest["engines"][role]["outputs"]:
            if tensor["role"] == "logits":
                tensor["shape"] = [1, 9]
        with pytest.raises(RowpackError) as caught:
            load_runtime("ort", describe_model(manifest), {PREFILL: engine}, section)
        assert caught.value.code == "engine_io_mismatch"


class _WrongEngines(OrtBackend):
    def __init__(self, role: str) -> None:
        self._role = role

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> OrtBuilder:
        return _WrongBuilder(self._role)


class _WrongBuilder(OrtBuilder):
    """Gives one projection of an engine the weights of another."""

    def __init__(self, role: str) -> None:
        self._role = role

    def build_engine(self, order: EngineOrder, *arguments: Any) -> EngineBuild:
        if order.role == self._role:
            products = [node for node in order.model.graph.node if node.op_type == "MatMulNBits"]
            shapes = {tensor.name: tuple(tensor.dims) for tensor in order.model.graph.initializer}
            first, second = [node for node in products if shapes[node.input[1]] == shapes[products[0].input[1]]][:2]
            first.input[1:] = second.input[1:]
        return super().build_engine(order, *arguments)


@pytest.mark.parametrize("role", [DECODE, PREFILL])
def test_either_engine_is_run_before_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setattr(build_stages, "find_backend", lambda name: _WrongEngines(role))
    with pytest.raises(RowpackError) as caught:
        built(tmp_path, "wrong", quantization="int8")
    assert caught.value.code == "verification_failed"
    assert {"chunked" in problem.message for problem in caught.value.problems} == {role == PREFILL}
    assert list(tmp_path.iterdir()) == []


def test_what_is_packed_is_given_back_while_the_rest_is_read(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored and packed weights are in memory together for a moment's worth only, and the numbers do not change."""
    expected = steps(load(bundle, threads=1).session())
    given_back: list[MappedSection] = []
    give_back = MappedSection.give_back_pages

    def counted(section: MappedSection) -> None:
        given_back.append(section)
        give_back(section)

    # Only rows of tokens are read of a bundle whose products are packed: in large pages they would cost 2 MiB each.
    monkeypatch.delattr(MappedSection, "ask_for_large_pages")
    monkeypatch.setattr(MappedSection, "give_back_pages", counted)
    monkeypatch.setattr(ort, "_GIVE_BACK_SECONDS", 0.001)
    found = steps(load(bundle, threads=1).session())
    assert len(given_back) > 1
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
