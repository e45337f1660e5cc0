"""Count the bytes of activations that are needed at the same time while a graph runs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from rowpack.graph.model import all_onnx_nodes, inner_graphs, names_read

_ELEMENT_BYTES = 4
"""Of every tensor: graphs in half precision are run in float32 where this is asked."""

_COUNTING: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
    "Concat": lambda *parts: np.concatenate(parts),
}
"""What graphs do with numbers of rows (surgery/chunk_rows.py); shape inference follows some of it, not all."""


def live_activation_bytes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> int:
    """Return the most bytes of results that are alive at once, nodes run in their order.

    ``sizes`` gives a number to each free dimension (``rows``, ``cache_rows``). Weights, inputs and outputs do not
    count, nor does a result whose shape nothing tells (behind an operator that the standard does not know). Of the
    graphs inside a node the one with most counts.
    """
    return _live_bytes(model.graph, _byte_counts(model, sizes))


def _live_bytes(graph: onnx.GraphProto, byte_counts: Mapping[str, int]) -> int:
    outputs = {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output} - outputs
    last_use = {name: index for index, node in enumerate(graph.node) for name in names_read(node)}
    alive = most = 0
    for index, node in enumerate(graph.node):
        alive += sum(byte_counts.get(name, 0) for name in node.output if name not in outputs)
        most = max(most, alive + max((_live_bytes(inner, byte_counts) for inner in inner_graphs(node)), default=0))
        ended = {name for name in names_read(node) if last_use[name] == index} & made
        alive -= sum(byte_counts.get(name, 0) for name in ended)
    return most


def _byte_counts(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each result by its name."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    graph = sized.graph
    # Weights that lie elsewhere have a shape, and the library would open the file that holds them.
    elsewhere = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in elsewhere:
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        graph.initializer.remove(tensor)
    # Inference sees the values of bounds and shapes only in the graph that holds them.
    for node in graph.node:
        for inner in inner_graphs(node):
            names = {name for read in inner.node for name in read.input}
            inner.initializer.extend(tensor for tensor in graph.initializer if tensor.name in names)
    for value in (*graph.input, *graph.output, *graph.value_info):
        for extent in value.type.tensor_type.shape.dim:
            words = extent.dim_param.split("+")
            if all(word in sizes or word.isdigit() for word in words):
                extent.dim_value = sum(sizes[word] if word in sizes else int(word) for word in words)
    counts = _counts(graph)
    for name, count in counts.items():
        graph.initializer.append(onnx.numpy_helper.from_array(count, name))
    counted = [node for node in graph.node if node.output[0] in counts]
    for node in counted:
        graph.node.remove(node)
    inferred = onnx.shape_inference.infer_shapes(sized, data_prop=True)
    graphs = [inferred.graph, *(inner for node in all_onnx_nodes(inferred.graph) for inner in inner_graphs(node))]
    shapes = {value.name: value.type.tensor_type.shape.dim for graph in graphs for value in graph.value_info}
    return {
        name: _ELEMENT_BYTES * math.prod(extent.dim_value for extent in shape)
        for name, shape in shapes.items()
        if all(extent.HasField("dim_value") for extent in shape)
    }


def _counts(graph: onnx.GraphProto) -> dict[str, np.ndarray[Any, Any]]:
    """Return the whole numbers that nodes of ``graph`` make of the shapes of its inputs and of constants, by name."""
    counts: dict[str, np.ndarray[Any, Any]] = {}
    shapes = {value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim] for value in graph.input}
    known = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.INT64
    }
    for node in graph.node:
        if node.op_type == "Shape" and node.input[0] in shapes:
            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            counts[node.output[0]] = np.array(shapes[node.input[0]], np.int64)[bounds.get("start") : bounds.get("end")]
        elif node.op_type in _COUNTING and all(name in known or name in counts for name in node.input):
            parts = [counts[name] if name in counts else known[name] for name in node.input]
            counts[node.output[0]] = np.asarray(_COUNTING[node.op_type](*parts), np.int64)
    return counts
