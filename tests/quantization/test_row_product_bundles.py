"""Bundles with products in whole numbers (w8a8), from checkpoint to tokens: both families, both layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_products import needs_exact_products
from trained_checkpoints import QWEN, TRAINED, last_words_as_the_reference, logit_error

from rowpack import BuildRequest, build
from rowpack_loaders import RowpackError, load, open_bundle
from rowpack_loaders.runtimes import ort_row_products
from rowpack_loaders.validation import validate

LARGEST_MEAN_LOGIT_ERROR = {"qwen3_5": 0.022, "rwkv": 0.014}
"""What was measured (docs/benchmarks.md), and a third more."""

ROUNDING = 0.1
"""What eight-bit rows move a logit by between graphs that mean the same, relative to the largest."""

PROMPT = [int(token) for token in np.random.default_rng(5).integers(3, 2000, 66)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a trained checkpoint in w8a8, each way once."""
    folder = tmp_path_factory.mktemp("bundles")
    done: dict[str, Path] = {}

    def of(family: str, **options: Any) -> Path:
        key = json.dumps([family, options], sort_keys=True)
        if key not in done:
            choices = {"decoder_engine_layout": "split"} | options
            request = BuildRequest(TRAINED[family], folder / f"{len(done)}.bundle", quantization="w8a8", **choices)
            done[key] = build(request).path
        return done[key]

    return of


def manifest_of(path: Path) -> dict[str, Any]:
    with open_bundle(path) as bundle:
        return json.loads(json.dumps(bundle.manifest))


@needs_exact_products
@pytest.mark.parametrize("family", TRAINED)
class TestBundle:
    def test_is_valid_and_says_what_it_needs(self, built: Callable[..., Path], family: str) -> None:
        path = built(family)
        assert validate(path).errors == []
        manifest = manifest_of(path)
        assert manifest["model"]["quantization"] == "w8a8"
        assert manifest["model"]["head_quantization"] == "w8a8"
        for engine in manifest["engines"].values():
            assert "com.microsoft.MatMulIntegerToFloat" in engine["requires"]
            assert engine["resident_bytes"]["shared"] is True
            assert "private" not in engine["resident_bytes"], "no weight is packed"

    def test_answers_like_the_reference(self, built: Callable[..., Path], family: str) -> None:
        path = built(family)
        assert logit_error(path, TRAINED[family]) <= LARGEST_MEAN_LOGIT_ERROR[family]
        assert last_words_as_the_reference(path, TRAINED[family], 24) >= 0.7

    def test_chunks_steps_and_a_single_engine_agree(self, built: Callable[..., Path], family: str) -> None:
        found = []
        for path in (built(family), built(family, decoder_engine_layout="single"), built(family, lowering="plain")):
            with load(path, threads=1) as decoder:
                modes = ("chunked", "token-loop") if decoder.runtime.has_prefill_engine else ("token-loop",)
                found += [decoder.session().prefill(PROMPT, mode=mode).copy() for mode in modes]
        assert len(found) == 5
        for other in found[1:]:
            assert np.abs(other - found[0]).max() <= ROUNDING * np.abs(found[0]).max()

    def test_head_and_embedding_are_stored_by_choice(self, built: Callable[..., Path], family: str) -> None:
        usual = built(family)
        narrow = built(family, embedding_quantization="w8a8")
        wide = built(family, head_quantization="none")
        mixed = built(family, head_quantization="int8", embedding_quantization="int4")
        for path in (narrow, wide, mixed):
            assert validate(path).errors == []
            assert logit_error(path, TRAINED[family]) <= 0.1
        assert logit_error(narrow, TRAINED[family]) <= 1.5 * LARGEST_MEAN_LOGIT_ERROR[family]
        assert "head_quantization" not in manifest_of(wide)["model"]
        assert narrow.stat().st_size < usual.stat().st_size < wide.stat().st_size


@needs_exact_products
def test_a_processor_that_saturates_is_refused(built: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = built("qwen3_5")
    monkeypatch.setattr(ort_row_products, "multiplies_exactly", lambda: False)
    with pytest.raises(RowpackError) as refused:
        load(path)
    assert refused.value.code == "cpu_feature_missing"
    assert "avx512_vnni" in refused.value.problem.expected
    assert "--quantization int8" in refused.value.problem.remedy


@pytest.mark.parametrize("family", TRAINED)
def test_a_machine_that_saturates_builds_for_another(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smoke run executes the graphs with products that are exact everywhere, and the report says so."""
    monkeypatch.setattr(ort_row_products, "multiplies_exactly", lambda: False)
    request = BuildRequest(TRAINED[family], tmp_path / "x.bundle", quantization="w8a8", decoder_engine_layout="split")
    report = build(request)
    assert report.executed == "graphs"
    assert validate(report.path).errors == []
    manifest = manifest_of(report.path)
    assert manifest["self_test"]["executed"] == "graphs"
    assert "com.microsoft.MatMulIntegerToFloat" in manifest["engines"]["prefill"]["requires"]


@needs_exact_products
def test_the_trial_finds_sums_that_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As processors without the instructions add: two products to sixteen bits at a time."""

    make = ort_row_products.one_product
    multiplied: list[Any] = []

    def remember(weights: Any, rows: int) -> bytes:
        multiplied.append(weights.astype(np.int64))
        return make(weights, rows)

    def saturated(content: bytes, output: str, inputs: dict[str, Any]) -> Any:
        weights, codes = multiplied[-1], inputs["codes"].astype(np.int64)
        pairs = (weights[:, :, None] * codes[None]).reshape(len(weights), -1, 2, codes.shape[1]).sum(axis=2)
        return (np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1) - 128 * codes.sum(axis=0)).astype(np.float32)

    monkeypatch.setattr(ort_row_products, "one_product", remember)
    monkeypatch.setattr(ort_row_products, "run_trial", saturated)
    assert not ort_row_products.multiplies_exactly.__wrapped__()


@pytest.mark.parametrize("backend", ["trt_rtx", "openvino"])
def test_other_backends_refuse_and_name_what_runs(backend: str, tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as refused:
        build(BuildRequest(QWEN, tmp_path / "x.bundle", backend=backend, quantization="w8a8"))
    assert refused.value.code == "quantization_unsupported"


def test_half_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as refused:
        BuildRequest(QWEN, tmp_path / "x.bundle", precision="fp16", quantization="w8a8")
    assert refused.value.code == "quantization_precision"
