"""Let half-precision graphs run in float32 throughout: weights and inputs are widened, and nothing is rounded between.

Where rows are rounded to a type of sixteen values, one rounding of a half more or less decides now and then to which of
two they go, and from there on two graphs that mean the same drift apart. In float32 they stay together, so that a
difference between them means something. It serves to check graphs on a build machine; no engine is built from it.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def in_float32_throughout(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with float32 in place of float16 and bfloat16 everywhere but at its inputs and outputs.

    Stored weights keep their bytes in the external file and are widened by a Cast. What is an output is rounded to its
    type before it is used within the graph too: a later call will see no more of it.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    declared = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    stored = [tensor.name for tensor in graph.initializer if tensor.data_type in _HALVES]
    sources = [*stored, *(value.name for value in graph.input if declared[value.name] in _HALVES)]
    rounded = {value.name for value in graph.output if declared[value.name] in _HALVES}
    widened = {name: f"{name}.in_float32" for name in (*sources, *rounded)}
    nodes = [_cast(name, widened[name], TensorProto.FLOAT) for name in sources]
    _widen(node for part in (graph, *result.functions) for node in part.node)
    for node in graph.node:
        changed = NodeProto()
        changed.CopyFrom(node)
        changed.input[:] = [widened.get(name, name) for name in node.input]
        changed.output[:] = [f"{name}.before_rounding" if name in rounded else name for name in node.output]
        nodes.append(changed)
        for name in rounded.intersection(node.output):
            nodes.append(_cast(f"{name}.before_rounding", name, declared[name]))
            nodes.append(_cast(name, widened[name], TensorProto.FLOAT))
    del graph.node[:]
    del graph.value_info[:]
    graph.node.extend(nodes)
    return result


def _widen(nodes: Iterable[NodeProto]) -> None:
    """Let casts and constants of a half be of float32."""
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in _HALVES:
                attribute.i = TensorProto.FLOAT
            elif attribute.t.data_type in _HALVES:
                wide = numpy_helper.to_array(attribute.t).astype("float32")
                attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))


def _cast(source: str, target: str, element_type: int) -> NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], name=f"{target}.cast", to=element_type)
