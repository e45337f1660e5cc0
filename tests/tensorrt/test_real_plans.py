"""Plans that TensorRT for RTX really compiles, without a GPU: they repeat, hold weights as stored, and fail well."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from compiled_models import TRAINED_CHECKPOINTS, Preparation, build_plan

from rowpack.engines import find_backend
from rowpack.engines.backend import EngineOrder
from rowpack.engines.options import EngineOptions
from rowpack.engines.tensorrt.backend import TensorRtBackend
from rowpack_loaders.errors import RowpackError

pytestmark = pytest.mark.trt_rtx

Preparations = Callable[[str, str], Preparation]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Preparations:
    """Return a function (family, precision) → the trained checkpoint, prepared once."""
    made: dict[tuple[str, str], Preparation] = {}

    def prepare(family: str, precision: str) -> Preparation:
        key = (family, precision)
        if key not in made:
            made[key] = Preparation(TRAINED_CHECKPOINTS[family], tmp_path_factory.mktemp("prepared"), precision, 64)
        return made[key]

    return prepare


def rtx() -> TensorRtBackend:
    backend = find_backend("trt_rtx")
    assert isinstance(backend, TensorRtBackend)
    return backend


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_plans_repeat_byte_for_byte_and_hold_the_weights_as_stored(
    prepared: Preparations, family: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine, one library: one plan. Each large matrix lies in it as in the checkpoint, but for half an island."""
    preparation = prepared(family, "fp16")
    plan, engine, _ = build_plan(rtx(), preparation, role)
    monkeypatch.setenv("SOMETHING_ELSE", "entirely")
    again, _, _ = build_plan(rtx(), preparation, role)
    assert plan == again
    section = preparation.weights.path.read_bytes()
    matrices = [weight for weight in preparation.model.plan.tensors if len(weight.spec.shape) == 2]
    found = [
        weight
        for weight in matrices
        if plan.find(section[weight.offset_bytes : weight.offset_bytes + weight.byte_count]) >= 0
    ]
    total = sum(weight.byte_count for weight in matrices)
    assert sum(weight.byte_count for weight in found) >= 0.99 * total
    assert 0.9 * total < engine.weight_bytes < 1.2 * total
    measured = engine.measurement
    assert measured is not None
    assert 0.6 * measured.estimated_peak_bytes < measured.peak_resident_bytes <= 1.02 * measured.estimated_peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_as_many_rows_as_the_backend_takes_compile(family: str, tmp_path: Path) -> None:
    rows = rtx().max_prefill_rows
    preparation = Preparation(TRAINED_CHECKPOINTS[family], tmp_path, "fp16", rows)
    _, engine, _ = build_plan(rtx(), preparation, "prefill", EngineOptions(("8.9",), None))
    assert engine.profile is not None
    assert engine.profile["token_id"] == [[1], [rows // 2], [rows]]


def test_the_record_is_the_librarys_own(prepared: Preparations) -> None:
    plan, engine, told = build_plan(rtx(), prepared("rwkv", "fp16"), "prefill", EngineOptions(("8.9", "12.0"), None))
    record: Any = engine.as_json("trt_rtx")
    assert record["backend_version"].startswith("1.")
    assert record["target"]["sm"] == ["8.9", "12.0"]
    assert record["target"]["os"] == ["linux", "windows"]
    assert record["resident_bytes"]["context"] >= record["resident_bytes"]["scratch"] > 0
    assert record["builder_flags"]["tf32"] is False
    assert engine.measurement is not None and engine.measurement.engine_bytes == len(plan)
    assert told


def changed(order: EngineOrder, change: Callable[[onnx.ModelProto], None]) -> EngineOrder:
    model = onnx.ModelProto()
    model.CopyFrom(order.model)
    change(model)
    return replace(order, model=model)


def test_a_shape_that_the_parser_loses_is_caught(prepared: Preparations) -> None:
    """Taking the last row by a Slice leaves the library a free row count, without a word; the file says one row."""

    def slice_the_last_row(model: onnx.ModelProto) -> None:
        for name, value in (("slice_start", -1), ("slice_end", 2**62), ("slice_axis", 0)):
            model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
        lookups = [node for node in model.graph.node if node.op_type == "Gather" and node.name.endswith("_row")]
        assert len(lookups) == 3
        for node in lookups:
            node.op_type = "Slice"
            del node.attribute[:]
            del node.input[1:]
            node.input.extend(["slice_start", "slice_end", "slice_axis"])

    preparation = prepared("rwkv", "fp16")
    order = changed(preparation.orders["prefill"], slice_the_last_row)
    with pytest.raises(RowpackError) as caught:
        build_plan(rtx(), preparation, order=order)
    assert caught.value.code == "engine_contract"
    assert [problem.where for problem in caught.value.problems] == ["logits"]


def test_an_operator_it_does_not_know_is_named_with_its_layer(prepared: Preparations) -> None:
    def unknown(model: onnx.ModelProto) -> None:
        next(node for node in model.graph.node if node.name == "layers.2.channel_mixing.key_relu").op_type = "Relux"

    preparation = prepared("rwkv", "fp16")
    with pytest.raises(RowpackError) as caught:
        build_plan(rtx(), preparation, order=changed(preparation.orders["decode"], unknown))
    assert caught.value.code == "engine_graph_refused"
    (problem,) = caught.value.problems
    assert problem.where == "layers.2.channel_mixing.key_relu"
    assert "Relux" in str(problem.found)


def test_mixed_operands_are_named_with_their_layer(prepared: Preparations) -> None:
    def widen(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.name == "layers.1.time_residual")
        node.input[1] = "layers.1.time_norm"

    preparation = prepared("rwkv", "fp16")
    with pytest.raises(RowpackError) as caught:
        build_plan(rtx(), preparation, order=changed(preparation.orders["decode"], widen))
    assert caught.value.problems[0].where == "layers.1.time_residual"


def test_turing_cannot_hold_the_float32_state(prepared: Preparations) -> None:
    with pytest.raises(RowpackError) as caught:
        build_plan(rtx(), prepared("qwen3_5", "fp16"), options=EngineOptions(("7.5",)))
    assert caught.value.code == "engine_build_failed"
    assert str(caught.value.problem.where).startswith("layers.")
    assert str(caught.value.problem.found).startswith("operator ")
    assert "7.5" in str(caught.value.problem.remedy)


def test_turing_takes_rwkv_in_half_precision(prepared: Preparations) -> None:
    _, engine, _ = build_plan(rtx(), prepared("rwkv", "fp16"), options=EngineOptions(("7.5",)))
    assert copy.deepcopy(engine.target)["sm"] == ["7.5"]


def test_weights_that_are_cut_off_are_refused(prepared: Preparations, tmp_path: Path) -> None:
    preparation = prepared("rwkv", "fp16")
    cut = tmp_path / "cut"
    cut.write_bytes(preparation.weights.path.read_bytes()[:100_000])
    builder = rtx().open_builder(EngineOptions())
    build = builder.build_engine(preparation.orders["decode"], replace(preparation.weights, path=cut), print)
    with pytest.raises(RowpackError) as caught:
        list(build.pieces())
    assert caught.value.code in ("engine_build_failed", "engine_builder_crashed")
