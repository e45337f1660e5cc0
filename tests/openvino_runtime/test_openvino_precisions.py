"""Half precisions on OpenVINO: what stays float32, and how far off the answers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openvino_bundles import build_for
from trained_models import reference_cases

from rowpack import BuildRequest, build
from rowpack_loaders import RowpackError, load, open_bundle
from rowpack_loaders.decoder import read_checked_section
from rowpack_loaders.golden import GOLDEN_SECTION, decode_golden
from rowpack_loaders.model_description import describe_model
from rowpack_loaders.selftest import replay_case
from rowpack_loaders.weights import view_weights

pytestmark = pytest.mark.openvino

FEW = (0, 3, 9, 10, 15, 21)
FLOAT32_ALWAYS = {"Exp", "CumSum", "Log", "SoftPlus", "ReduceMean", "Sqrt", "ReduceMax", "Maximum", "Cos", "Sin"}
"""Operators that only decays, the delta rule, WKV, softmax, norms and rotary embeddings have."""


@pytest.fixture(scope="module", params=["qwen_checkpoint", "rwkv_checkpoint"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """Each trained checkpoint."""
    value: Path = request.getfixturevalue(request.param)
    return value


@pytest.fixture(scope="module")
def bfloat16_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split bundle in bfloat16."""
    return build_for(checkpoint, tmp_path_factory.mktemp("bf16"), "split", precision="bf16")


def has_products() -> bool:
    from rowpack_loaders.runtimes.openvino.library import has_bfloat16_products, import_openvino

    return has_bfloat16_products(import_openvino().Core())


def worst_error(decoder: Any, checkpoint: Path, mode: Any, tolerance: float) -> float:
    cases, session = reference_cases(checkpoint), decoder.session()
    results = [replay_case(session, cases[number], mode, tolerance) for number in FEW]
    return max(result.relative_logit_error for result in results)


def test_float16_is_within_its_rounding(checkpoint: Path, tmp_path: Path) -> None:
    # Measured: 1.4e-4 (Qwen3.5), 1.0e-6 (RWKV); the weights are widened, and products are float32.
    with load(build_for(checkpoint, tmp_path, "split", precision="fp16"), threads=1) as decoder:
        assert worst_error(decoder, checkpoint, "chunked", 1e-3) < 1e-3
        assert worst_error(decoder, checkpoint, "token-loop", 1e-3) < 1e-3


def test_bfloat16_is_within_its_rounding(
    bfloat16_bundle: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Measured where OpenVINO widens, for want of bfloat16 products: 3.4e-3 (Qwen3.5), below 1e-5 (RWKV). With every
    # result rounded to bfloat16, as ONNX Runtime executes the graphs in a build: 1.5e-2 and 9.9e-3.
    monkeypatch.setattr("rowpack_loaders.runtimes.openvino.runtime.has_bfloat16_products", lambda core: True)
    with load(bfloat16_bundle, threads=1) as decoder:
        assert worst_error(decoder, checkpoint, "chunked", 1e-1) < 5e-2
        assert worst_error(decoder, checkpoint, "token-loop", 1e-1) < 5e-2


def test_a_build_compares_with_bfloat16_weights_in_float32(checkpoint: Path, tmp_path: Path) -> None:
    """The golden logits are off by the weights' rounding alone; with every result rounded they would be by 1e-2."""
    logits = {}
    for precision in ("fp32", "bf16"):
        path = tmp_path / f"{precision}.bundle"
        build(BuildRequest(checkpoint, path, backend="openvino", precision=precision))
        with open_bundle(path) as bundle:
            cases = decode_golden(read_checked_section(bundle, GOLDEN_SECTION)).cases
        logits[precision] = {(case.kind, token): logit for case in cases for token, logit in case.last_row_top}
    both = logits["fp32"].keys() & logits["bf16"].keys()
    assert len(both) >= 0.8 * len(logits["fp32"])
    largest = max(map(abs, logits["fp32"].values()))
    assert max(abs(logits["fp32"][place] - logits["bf16"][place]) for place in both) < 5e-3 * largest


def test_a_build_expects_widened_weights_once_where_bfloat16_is_multiplied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the exported graph then, and else of both engines' graphs, which are executed in float32."""
    needs = {}
    for feature in ("avx512_bf16", "avx2"):
        monkeypatch.setattr("rowpack.host_need.processor_features", lambda feature=feature: frozenset({feature}))
        request = BuildRequest(checkpoint, tmp_path / f"{feature}.bundle", backend="openvino", precision="bf16")
        needs[feature] = build(replace(request, verify=False, decoder_engine_layout="split")).host_memory.need
    assert [need.session_count for need in needs.values()] == [1, 2]
    assert [need.packing_bytes > 0 for need in needs.values()] == [False, True]
    assert needs["avx512_bf16"].private_weight_bytes == needs["avx2"].private_weight_bytes > 0


def test_bfloat16_needs_a_processor_with_it(bfloat16_bundle: Path) -> None:
    if has_products():
        with load(bfloat16_bundle, threads=1) as decoder:
            assert decoder.runtime.backend == "openvino"
        return
    with pytest.raises(RowpackError) as refused:
        load(bfloat16_bundle)
    assert refused.value.code == "cpu_feature_missing"
    assert "avx512_bf16" in str(refused.value)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_states_decays_and_norms_are_float32_in_a_bfloat16_engine(bfloat16_bundle: Path, role: str) -> None:
    from rowpack_loaders.runtimes.openvino.graph_reading import read_graph
    from rowpack_loaders.runtimes.openvino.library import import_openvino
    from rowpack_loaders.runtimes.openvino.runtime import COMPILE_PROPERTIES

    openvino = import_openvino()
    core = openvino.Core()
    with open_bundle(bfloat16_bundle) as bundle:
        model = describe_model(bundle.manifest)
        assert model.weights_section is not None
        weights = view_weights(bundle.container.mapped_section(model.weights_section), where="weights")
        graph = read_graph(core, bundle.read_section(model.engines[role].section), weights, where=role)
        types = {(op.get_type_name(), op.get_output_element_type(0).get_type_name()) for op in graph.get_ops()}
        assert ("MatMul", "bf16") in types
        assert {(name, kind) for name, kind in types if name in FLOAT32_ALWAYS and kind not in ("f32", "i64")} == set()
        assert {name for name, _ in types} & FLOAT32_ALWAYS
        for state in model.states:
            if state.update == "replace":
                assert graph.input(state.input).get_element_type() == openvino.Type.f32
                assert graph.output(state.output).get_element_type() == openvino.Type.f32

        compiled = core.compile_model(graph, "CPU", COMPILE_PROPERTIES)
        # With this hint the plugin lowers nothing; by default it would lower float32 to bfloat16 where it can.
        assert compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
        products = {kind for name, kind in runtime_precisions(compiled) if name in ("FullyConnected", "MatMul")}
        written = {kind for name, kind in types if name == "MatMul"}
        # The delta rule and attention have products in float32 beside the projections; WKV has none.
        assert written == ({"bf16", "f32"} if any(state.role == "recurrent" for state in model.states) else {"bf16"})
        assert products == (written if has_products() else {"f32"})
        scalar = {
            kind for name, kind in runtime_precisions(compiled) if name in ("Math", "CumSum", "Reduce", "MVN", "RMS")
        }
        assert scalar == {"f32"}
        del compiled, graph


def runtime_precisions(compiled: Any) -> set[tuple[str, str]]:
    """Return layer type and precision of everything a compiled model executes."""
    found = set()
    for op in compiled.get_runtime_model().get_ops():
        facts = op.get_rt_info()
        found.add((facts["layerType"].astype(str), facts["runtimePrecision"].astype(str)))
    return found
