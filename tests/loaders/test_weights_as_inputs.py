"""Turning initializers with external data into inputs of the graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rowpack_loaders import RowpackError
from rowpack_loaders.onnx_wire import external_data, weights_as_inputs


def model_with_weights() -> onnx.ModelProto:
    """Return a model with two external weights and one small initializer of its own."""
    weights = []
    for name, kind, dims in (("w", TensorProto.FLOAT, [300, 4]), ("half", TensorProto.BFLOAT16, [4])):
        tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
        for key, text in (("location", "weights.safetensors"), ("offset", "8"), ("length", "4800")):
            tensor.external_data.add(key=key, value=text)
        weights.append(tensor)
    own = numpy_helper.from_array(np.ones(4, np.float32), "own")
    nodes = [
        helper.make_node("MatMul", ["w", "x"], ["product"]),
        helper.make_node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["product", "wide"], ["scaled"]),
        helper.make_node("Add", ["scaled", "own"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [300, 4])
    graph = helper.make_graph(nodes, "weights", [x], [y], [*weights, own])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_weights_become_inputs_of_their_name_type_and_shape() -> None:
    changed = onnx.load_from_string(weights_as_inputs(model_with_weights().SerializeToString(), where="x"))
    onnx.checker.check_model(changed)
    inputs = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dimension.dim_value for dimension in value.type.tensor_type.shape.dim],
        )
        for value in changed.graph.input
    }
    assert inputs == {
        "x": (TensorProto.FLOAT, [4, 4]),
        "w": (TensorProto.FLOAT, [300, 4]),
        "half": (TensorProto.BFLOAT16, [4]),
    }
    assert [tensor.name for tensor in changed.graph.initializer] == ["own"]
    assert external_data(changed.SerializeToString(), where="x") == []


def test_a_model_without_external_data_stays_what_it_is() -> None:
    model = model_with_weights()
    del model.graph.initializer[:2]
    data = model.SerializeToString()
    assert weights_as_inputs(data, where="x") == data


def test_bytes_that_are_no_model_are_refused() -> None:
    with pytest.raises(RowpackError) as refused:
        weights_as_inputs(model_with_weights().SerializeToString()[:-3], where="x")
    assert refused.value.code == "onnx_malformed"
