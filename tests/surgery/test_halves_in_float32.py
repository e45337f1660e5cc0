"""Graphs in half precision run in float32 throughout: no half is left but at the border, and outputs are rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rowpack import BuildRequest
from rowpack.checkpoint import open_checkpoint
from rowpack.export import export_graph
from rowpack.model_preparation import prepare_model
from rowpack.surgery.halves_in_float32 import in_float32_throughout

HALF = TensorProto.FLOAT16
THIRD = np.float16(1 / 3)


def small_model() -> onnx.ModelProto:
    """Return y = x · w, an output, and z = wide(half(x / 3)) · 3 + y, with a constant of each kind."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("Constant", [], ["third"], value=numpy_helper.from_array(np.array(THIRD))),
        helper.make_node("Cast", ["x"], ["x_wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["x_wide"], ["x_half"], to=HALF),
        helper.make_node("Mul", ["x_half", "third"], ["part"]),
        helper.make_node("Div", ["part", "third"], ["whole"]),
        helper.make_node("Add", ["whole", "y"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["z"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", HALF, [2])],
        [helper.make_tensor_value_info("y", HALF, [2]), helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([1.1, 2.3], np.float16), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model: onnx.ModelProto, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y", "z"], {"x": x})


def test_nothing_is_rounded_between_border_and_border() -> None:
    model = in_float32_throughout(small_model())
    onnx.checker.check_model(model, full_check=True)
    x = np.array([0.7, 1.3], np.float16)
    y, z = run(model, x)
    wide, weights = x.astype(np.float32), np.array([1.1, 2.3], np.float16).astype(np.float32)
    third = np.float32(THIRD)
    rounded = (wide * weights).astype(np.float16)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, rounded)
    # The output is rounded before it is used again; everything else is not.
    np.testing.assert_array_equal(z, wide * third / third + rounded.astype(np.float32))
    _, in_halves = run(small_model(), x)
    assert (in_halves != z).any()


def test_the_model_given_is_left_alone() -> None:
    model = small_model()
    before = model.SerializeToString()
    in_float32_throughout(model)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_no_half_is_left_in_a_model(tiny_checkpoints: dict[str, Path], family: str, precision: str) -> None:
    """Its mixers are functions, whose bodies are widened as well."""
    request = BuildRequest(tiny_checkpoints[family], Path("unused"), precision=precision, max_sequence_length=64)
    with open_checkpoint(request.checkpoint, allow_missing_tokenizer=True) as checkpoint:
        prepared = prepare_model(checkpoint, request)
    exported = export_graph(prepared.model, prepared.plan, precision)
    model = in_float32_throughout(exported)
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    targets = [
        (node.output[0], attribute.i)
        for node in nodes
        for attribute in node.attribute
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i in halves
    ]
    assert {name for name, _ in targets} <= {value.name for value in model.graph.output}
    assert [a.t.data_type for node in nodes for a in node.attribute if a.t.data_type in halves] == []
    stored = {tensor.name for tensor in model.graph.initializer if tensor.data_type in halves}
    assert stored
    assert {name for node in model.graph.node if node.op_type != "Cast" for name in node.input} & stored == set()
    assert [value.name for value in model.graph.output] == [value.name for value in exported.graph.output]
