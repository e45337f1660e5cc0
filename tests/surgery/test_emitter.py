"""The emitter: names, shared constants, outputs, external weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from model_facts import external_facts

from rowpack.graph.dtypes import byte_width, dtype_name, numpy_dtype, onnx_type, safetensors_code, work_dtype
from rowpack.graph.emitter import Emitter, static_shape
from rowpack.graph.model import export_model, import_graph, new_graph, serialize
from rowpack_loaders.errors import RowpackError


@pytest.fixture
def emitter() -> Emitter:
    return Emitter(new_graph("toy"))


def test_names_follow_the_scope_and_stay_unique(emitter: Emitter) -> None:
    x = emitter.input("x", "float32", [2])
    layer = emitter.scope("layers.3").scope("mlp")
    for _ in range(3):
        x = layer.op("Neg", [x], "gate")
    x = layer.at_root("head").op("Neg", [x], "minus")
    names = [node.name for node in emitter.graph.nodes]
    assert names == ["layers.3.mlp.gate", "layers.3.mlp.gate.2", "layers.3.mlp.gate.3", "head.minus"]
    assert [node.outputs[0].name for node in emitter.graph.nodes] == names


def test_a_new_emitter_knows_the_names_a_graph_already_has(emitter: Emitter) -> None:
    x = emitter.input("x", "float32", [2])
    emitter.output(emitter.op("Neg", [x], "minus"), "y", "float32", [2])
    again = Emitter(import_graph(export_model(emitter.graph)))
    for name in ("minus", "x", "y"):
        assert again.op("Neg", [x], name).name == f"{name}.2"


def test_a_constant_is_stored_once_for_equal_values(emitter: Emitter) -> None:
    first = emitter.scope("a").constant("mask", np.eye(2))
    assert emitter.scope("b").constant("mask", np.eye(2)) is first
    assert emitter.ints(-1, 3) is emitter.ints(-1, 3)
    assert emitter.ints(-1, 3).name == "constants.int64.minus1_3"


@pytest.mark.parametrize(
    "other", [np.zeros((2, 2)), np.eye(2, dtype=np.float32), np.eye(2).reshape(1, 4), np.eye(2, dtype=np.int64)]
)
def test_constants_that_differ_are_kept_apart(emitter: Emitter, other: np.ndarray[Any, Any]) -> None:
    first, second = emitter.constant("mask", np.eye(2)), emitter.constant("mask", other)
    assert first is not second
    assert first.name != second.name
    np.testing.assert_array_equal(second.values, other)
    assert second.values.dtype == other.dtype


def test_an_output_takes_its_name_without_another_node(emitter: Emitter) -> None:
    x = emitter.input("x", "float32", [2])
    emitter.output(emitter.op("Neg", [x], "minus"), "y", "float32", [2])
    assert [node.op for node in emitter.graph.nodes] == ["Neg"]
    assert emitter.graph.outputs[0].name == "y"


def test_an_identity_is_emitted_where_renaming_cannot_do(emitter: Emitter) -> None:
    x = emitter.input("x", "float32", [2])
    minus = emitter.op("Neg", [x], "minus")
    emitter.output(minus, "y", "float32", [2])
    emitter.output(minus, "z", "float32", [2])
    emitter.output(x, "same", "float32", [2])
    model = export_model(emitter.graph)
    onnx.checker.check_model(model, full_check=True)
    assert [output.name for output in model.graph.output] == ["y", "z", "same"]
    assert [node.op_type for node in model.graph.node].count("Identity") == 2


def test_a_cast_is_emitted_only_between_different_types(emitter: Emitter) -> None:
    x = emitter.input("x", "float32", [2])
    assert emitter.cast_if_needed(x, "float32", "float32", "cast") is x
    assert emitter.cast_if_needed(x, "float32", "bfloat16", "cast").dtype == onnx_type("bfloat16")


def test_an_external_weight_is_named_and_not_read(emitter: Emitter) -> None:
    weight = emitter.external_weight("w", "bfloat16", [3, 2], "absent.bin", 4096, 12)
    x = emitter.input("x", "bfloat16", ["rows", 2])
    emitter.output(emitter.op("Gemm", [x, weight], "proj", transB=1), "y", "bfloat16", ["rows", 3])
    model = export_model(emitter.graph)
    (stored,) = model.graph.initializer
    assert (stored.name, stored.data_type, list(stored.dims)) == ("w", onnx_type("bfloat16"), [3, 2])
    assert external_facts(stored) == {"location": "absent.bin", "offset": "4096", "length": "12"}
    again = export_model(import_graph(model))
    assert serialize(again) == serialize(model), "a round trip through surgery's form changes nothing"


def test_a_tensor_without_a_shape_is_a_fault_of_the_emitting_code(emitter: Emitter) -> None:
    assert static_shape(emitter.input("x", "float32", ["rows", 4])) == ["rows", 4]
    with pytest.raises(AssertionError, match="minus"):
        static_shape(emitter.op("Neg", [emitter.graph.inputs[0]], "minus"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_names_of_element_types(dtype: str) -> None:
    assert dtype_name(onnx_type(dtype)) == dtype
    assert numpy_dtype(dtype).name == dtype
    assert byte_width(dtype) == numpy_dtype(dtype).itemsize
    assert safetensors_code(dtype) == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]


def test_an_unknown_precision_is_refused() -> None:
    assert [work_dtype(precision) for precision in ("fp32", "fp16", "bf16")] == ["float32", "float16", "bfloat16"]
    with pytest.raises(RowpackError) as caught:
        work_dtype("fp8")
    assert caught.value.code == "precision_unknown"
    assert "fp16" in str(caught.value.problem.expected)
