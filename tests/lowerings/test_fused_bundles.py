"""Whole bundles with fused operators: right, valid, named in the manifest, and refused where they cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from built_graphs import QWEN, RWKV

from rowpack import BuildRequest, build
from rowpack.cli import main
from rowpack.comparison import compare_bundles
from rowpack.engines.fused_operators import choice
from rowpack.graph.custom_operators import custom_operators
from rowpack_loaders import RowpackError, load, open_bundle, validate
from rowpack_loaders.compatibility import Target, check_bundle
from rowpack_loaders.onnx_interface import read_onnx_interface
from rowpack_loaders.runtimes import ort as ort_runtime
from rowpack_loaders.selftest import run_self_test

MIXERS = ["com.microsoft.CausalConvWithState", "com.microsoft.GroupQueryAttention", "com.microsoft.LinearAttention"]
NORM = "com.microsoft.SkipSimplifiedLayerNormalization"
SILU = "com.microsoft.QuickGelu"
ALL = sorted([*MIXERS, NORM, SILU, "com.microsoft.LinearAttentionGate"])
FASTER = ["com.microsoft.LinearAttention", SILU, NORM]
FORMS = {"plain": [], "fused": ALL, "auto": FASTER, "fused-single": ALL}
FUSED = [name for name in FORMS if name != "plain"]

Bundles = dict[str, Path]


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((QWEN / "golden.json").read_text("utf-8"))["cases"]
    return found


def engines_of(path: Path) -> dict[str, Any]:
    with open_bundle(path) as bundle:
        engines: dict[str, Any] = json.loads(json.dumps(bundle.manifest["engines"]))
    return engines


@pytest.mark.parametrize("name", FORMS)
def test_the_manifest_names_the_operators_that_the_graphs_use(name: str, bundles: Bundles) -> None:
    with open_bundle(bundles[name]) as bundle:
        for role, engine in engines_of(bundles[name]).items():
            data = bundle.read_section(engine["section"])
            assert engine["requires"] == FORMS[name], role
            assert engine["lowering"] == ("plain" if name == "plain" else "fused"), role
            assert list(custom_operators(onnx.ModelProto.FromString(data))) == FORMS[name]
            assert list(read_onnx_interface(data, where="x").custom_operators) == FORMS[name]
        trailer: Any = bundle.trailer()
    parameters = trailer["provenance"]["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["lowering"] == name.partition("-")[0]


@pytest.mark.parametrize("name", ["fused", "auto"])
def test_fused_bundles_are_valid_and_pass_their_self_test(name: str, bundles: Bundles) -> None:
    report = validate(bundles[name])
    assert (report.errors, report.warnings) == ([], [])
    with load(bundles[name], threads=1) as decoder:
        assert run_self_test(decoder).passed


def test_inputs_outputs_and_states_are_those_of_the_plain_form(bundles: Bundles) -> None:
    plain, fused = engines_of(bundles["plain"]), engines_of(bundles["fused"])
    for role, engine in plain.items():
        for key in ("inputs", "outputs", "rows"):
            assert fused[role][key] == engine[key], (role, key)


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("fused", "text", 1),
        ("fused", "text", 65),
        ("auto", "repeat", 130),
        ("auto", "two-token cycle", 100),
        ("fused-single", "text", 31),
    ],
)
def test_golden_cases(name: str, kind: str, rows: int, bundles: Bundles) -> None:
    case = next(case for case in cases() if case["kind"] == kind and len(case["prompt_ids"]) == rows)
    check_case(bundles[name], case, ("chunked", "token-loop") if "single" not in name else ("token-loop",))


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_every_golden_case(name: str, bundles: Bundles) -> None:
    for case in cases():
        check_case(bundles[name], case, ("chunked", "token-loop") if "single" not in name else ("token-loop",))


def check_case(path: Path, case: dict[str, Any], modes: tuple[Any, ...]) -> None:
    with load(path, threads=1) as decoder:
        for mode in modes:
            logits = decoder.session().prefill(case["prompt_ids"], mode=mode).copy()
            top = case["last_row_top5"]
            scale = max(abs(value) for _, value in top)
            assert max(abs(float(logits[token]) - value) for token, value in top) <= 1e-4 * scale, mode
            run = decoder.generate(
                case["prompt_ids"], max_new_tokens=len(case["greedy_ids"]), prefill=mode, stop_token_ids=[]
            )
            assert list(run.token_ids) == case["greedy_ids"], mode


def test_half_precision_projections_with_fused_mixers(tmp_path: Path, bundles: Bundles) -> None:
    options = {"precision": "fp16", "decoder_engine_layout": "split", "max_sequence_length": 256}
    report = build(BuildRequest(QWEN, tmp_path / "half.bundle", lowering="fused", **options))
    # In half precision a cast lies between the residual sum and its norm.
    assert engines_of(report.path)["decode"]["requires"] == [name for name in ALL if name != NORM]
    prompt = cases()[0]["prompt_ids"]
    with load(report.path, threads=1) as half, load(bundles["plain"], threads=1) as full:
        found, expected = (decoder.session().prefill(prompt).copy() for decoder in (half, full))
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()


def test_two_fused_builds_are_the_same_file(tmp_path: Path, bundles: Bundles) -> None:
    request = BuildRequest(
        QWEN,
        tmp_path / "again.bundle",
        lowering="auto",
        decoder_engine_layout="split",
        max_sequence_length=512,
        target_memory_bytes=2**30,
        model_id="trained",
    )
    assert build(request).path.read_bytes() == bundles["auto"].read_bytes()


def test_recurrent_models_stay_plain_under_auto(tmp_path: Path) -> None:
    path = build(BuildRequest(RWKV, tmp_path / "rwkv.bundle", lowering="auto", verify=False)).path
    assert {(engine["lowering"], *engine["requires"]) for engine in engines_of(path).values()} == {("plain",)}


def test_a_runtime_without_the_operator_refuses_before_it_loads(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = ort_runtime.operators_of_onnxruntime(ort_runtime.onnxruntime)
    assert kernels is not None
    assert set(ALL) <= kernels
    assert "com.microsoft.SwiGLU" not in kernels, "it has a schema and no kernel for the processor"

    def never(*_: Any) -> Any:
        raise AssertionError("a session was created")

    monkeypatch.setattr(ort_runtime, "operators_of_onnxruntime", lambda _: kernels - {FASTER[0]})
    monkeypatch.setattr(ort_runtime.OrtRuntime, "_create_session", never)
    with pytest.raises(RowpackError) as caught:
        load(bundles["auto"])
    problem = caught.value.problem
    assert problem.code == "engine_operator_missing"
    assert problem.where == "manifest.json#/engines/decode/requires"
    assert problem.found is not None
    assert problem.found.endswith("without com.microsoft.LinearAttention")
    assert problem.remedy is not None
    assert "--lowering plain" in problem.remedy


def test_a_runtime_that_does_not_say_is_asked_by_loading(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_runtime, "operators_of_onnxruntime", lambda _: None)
    assert load(bundles["auto"], threads=1).runtime.has_prefill_engine


def test_a_wrong_runtime_leads_a_build_to_plain_or_to_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime of this test computes the delta rule with a gate that is off by a thousandth."""
    from rowpack.surgery import fused_operators

    right = fused_operators.FUSED_OPERATORS[0]

    def wrong(emitter: Any, inputs: Any, attributes: Any) -> Any:
        gate = emitter.op("Mul", [inputs[3], emitter.floats("off", 1.001, scalar=True)], "gate")
        return right.lowering(emitter, [*inputs[:3], gate, *inputs[4:]], attributes)

    operators = (
        fused_operators.FusedOperator(right.name, right.replaced, wrong, 20),
        *fused_operators.FUSED_OPERATORS[1:],
    )
    monkeypatch.setattr(fused_operators, "FUSED_OPERATORS", operators)
    path = build(BuildRequest(QWEN, tmp_path / "auto.bundle", lowering="auto", verify=False)).path
    assert engines_of(path)["decode"]["requires"] == [SILU, NORM], "what is right stays in use"
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(QWEN, tmp_path / "fused.bundle", lowering="fused", verify=False))
    assert caught.value.code == "fused_operator_refused"
    assert right.name in str(caught.value)
    assert not (tmp_path / "fused.bundle").exists()
    assert choice.LOWERINGS == ("plain", "fused", "auto")


@pytest.mark.parametrize(
    ("name", "oldest", "version", "fits"),
    [
        ("auto", "1.25.1", "1.24.4", False),
        ("auto", "1.25.1", "1.25.0", False),
        ("auto", "1.25.1", "1.25.1", True),
        ("auto", "1.25.1", "1.26", True),
        ("fused", "1.30", "1.29.0", False),
        ("fused", "1.30", "1.30.0", True),
        ("fused", "1.30", "1.32.0", True),
    ],
)
def test_check_knows_since_when_the_operators_are_there(
    name: str, oldest: str, version: str, fits: bool, bundles: Bundles
) -> None:
    target = Target(os="linux", arch="x86_64", has_gpu=False, runtimes={"ort": version}, runtimes_complete=True)
    report = check_bundle(bundles[name], target)
    assert report.compatible is fits
    if not fits:
        assert [problem.code for problem in report.reasons] == ["target_runtime_version_mismatch"]
        assert report.reasons[0].expected == f"onnxruntime {oldest} or newer"
    assert check_bundle(bundles["plain"], target).compatible


def test_inspect_and_diff_tell_the_form(bundles: Bundles, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundles["auto"])]) == 0
    assert "fused operators; needs com.microsoft.LinearAttention" in capsys.readouterr().out
    assert main(["inspect", str(bundles["plain"])]) == 0
    assert "any machine  plain operators\n" in capsys.readouterr().out
    differences = {
        difference.where: (difference.first, difference.second)
        for difference in compare_bundles(bundles["plain"], bundles["auto"]).of("engines")
    }
    assert differences["/engines/decode/lowering"] == ("plain", "fused")
    assert "com.microsoft.LinearAttention" in str(differences["/engines/decode/requires"][1])


def test_the_command_line_takes_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "cli.bundle"
    assert main(["build", str(QWEN), "-o", str(output), "--lowering", "auto", "--no-verify", "--progress", "none"]) == 0
    assert engines_of(output)["decode"]["requires"] == FASTER
    refused = main(["build", str(RWKV), "-o", str(output), "--lowering", "fused", "--progress", "none"])
    assert refused == 1
    assert "[fused_operators_unused]" in capsys.readouterr().err
