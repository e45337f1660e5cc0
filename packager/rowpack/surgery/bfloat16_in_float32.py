"""Let bfloat16 graphs run where no bfloat16 arithmetic is: each operator in float32, its results rounded.

That is what a bfloat16 operator with a float32 accumulator is defined to give. It serves to check graphs on a build
machine; no engine is built from the result.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

_BFLOAT16 = onnx.TensorProto.BFLOAT16
_FLOAT = onnx.TensorProto.FLOAT

_MOVING = frozenset({"Cast", "Concat", "Gather", "Identity", "Reshape", "Squeeze", "Transpose"})
"""Operators that only move values, which runtimes have for every element type."""


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with casts around every operator that computes in bfloat16; inputs and outputs stay as they are.

    Calls of functions are left alone: their bodies widen what they compute with.
    """
    types = _element_types(model)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    widened: dict[str, str] = {}
    for node in model.graph.node:
        if node.domain or node.op_type in _MOVING or _BFLOAT16 not in map(types.get, (*node.input, *node.output)):
            result.graph.node.append(node)
            continue
        wide = onnx.NodeProto()
        wide.CopyFrom(node)
        for index, name in enumerate(node.input):
            if types.get(name) == _BFLOAT16:
                if name not in widened:
                    widened[name] = f"{name}.in_float32"
                    result.graph.node.append(_cast(name, widened[name], _FLOAT))
                wide.input[index] = widened[name]
        rounded = []
        for index, name in enumerate(node.output):
            if types.get(name) == _BFLOAT16:
                wide.output[index] = f"{name}.before_rounding"
                rounded.append(_cast(wide.output[index], name, _BFLOAT16))
        result.graph.node.append(wide)
        result.graph.node.extend(rounded)
    return result


def _cast(source: str, target: str, element_type: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], name=f"{target}.cast", to=element_type)


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of every tensor of the main graph."""
    inferred = onnx.shape_inference.infer_shapes(model)
    types = {tensor.name: tensor.data_type for tensor in inferred.graph.initializer}
    for value in _declared(inferred.graph):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def _declared(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
