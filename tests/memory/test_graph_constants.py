"""Counting what a graph carries: each constant once, wherever it stands and however narrow its elements are."""

from __future__ import annotations

import math
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from rowpack.graph.constants import constant_bytes, tensor_bytes


def external(name: str, dtype: int, shape: list[int]) -> onnx.TensorProto:
    """Return an initializer whose values lie elsewhere."""
    tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.safetensors")
    return tensor


def model(*tensors: onnx.TensorProto, nodes: Any = ()) -> onnx.ModelProto:
    """Return a model with these initializers."""
    return helper.make_model(helper.make_graph(list(nodes), "g", [], [], initializer=list(tensors)))


@pytest.mark.parametrize(
    ("dtype", "shape", "byte_count"),
    [
        (TensorProto.FLOAT, [3, 5], 60),
        (TensorProto.FLOAT16, [3, 5], 30),
        (TensorProto.BFLOAT16, [3, 5], 30),
        (TensorProto.FLOAT8E4M3FN, [3, 5], 15),
        (TensorProto.FLOAT4E2M1, [3, 5], 8),
        (TensorProto.INT64, [], 8),
        (TensorProto.FLOAT, [0, 4], 0),
    ],
)
def test_a_tensor_takes_its_elements(dtype: int, shape: list[int], byte_count: int) -> None:
    assert tensor_bytes(external("w", dtype, shape)) == byte_count


def test_external_and_inline_are_told_apart_and_halves_widened() -> None:
    counted = constant_bytes(
        model(
            external("half", TensorProto.FLOAT16, [10, 10]),
            external("norm", TensorProto.FLOAT, [10]),
            helper.make_tensor("table", TensorProto.FLOAT, [4], [0.0] * 4),
        )
    )
    assert (counted.external, counted.inline, counted.total) == (240, 16, 256)
    assert counted.external_in_float32 == 400 + 40


def test_tied_tensors_count_twice_where_the_graph_holds_both() -> None:
    embedding = external("embed.weight", TensorProto.FLOAT16, [100, 8])
    output = external("lm_head.weight", TensorProto.FLOAT16, [100, 8])
    assert constant_bytes(model(embedding)).external == 1600
    assert constant_bytes(model(embedding, output)).external == 3200


def test_scales_of_quantised_weights_count() -> None:
    weight = external("w", TensorProto.FLOAT8E4M3FN, [64, 32])
    scale = external("w.scale", TensorProto.FLOAT, [64])
    assert constant_bytes(model(weight, scale)).external == 64 * 32 + 64 * 4


def test_constants_of_nodes_and_of_inner_graphs_count() -> None:
    value = helper.make_tensor("v", TensorProto.INT64, [2], [1, 2])
    constant = helper.make_node("Constant", [], ["c"], value=value)
    inner = helper.make_graph([constant], "inner", [], [], initializer=[external("w", TensorProto.FLOAT, [3])])
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    counted = constant_bytes(model(nodes=[constant, branch]))
    assert (counted.external, counted.inline) == (2 * 12, 16 + 2 * 16)
    assert math.isclose(counted.total, 72)
