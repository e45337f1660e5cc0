"""Leave activations in columns from one product with the weight on the left to the next.

``W · xᵀ`` gives columns and takes columns. Where only pointwise operators stand between two such products, as in an
MLP, the transposes to rows and back are two copies of its widest activation for nothing: the operators are moved to
the columns instead, and a split of rows in parts becomes a split of columns in contiguous blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Tensor
from rowpack.surgery.surgery_pass import surgery_error

_POINTWISE = frozenset({"Sigmoid", "Relu", "Mul"})
_TO_THE_OTHER = {"perm": [1, 0]}


@dataclass(frozen=True)
class _Region:
    """Operators between products: ``starts`` are transposes to rows, ``ends`` transposes to columns."""

    starts: list[Any]
    nodes: list[Any]
    ends: list[Any]


class ColumnsBetweenProducts:
    """Move what stands between two products with the weight on the left to columns."""

    name = "columns between products"

    def check_before(self, graph: gs.Graph) -> None:
        """Products have two dimensions: anything else is not this project's form."""
        for node in graph.nodes:
            if _starts(node) and len(node.outputs[0].shape or ()) not in (0, 2):
                raise surgery_error(
                    self.name,
                    "a product has other than two dimensions",
                    where=node.name,
                    found=str(node.outputs[0].shape),
                    expected="rows and channels",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place."""
        for region in _regions(graph):
            for node in region.nodes:
                if node.op == "Split":
                    node.attrs["axis"] = 0
                for tensor in node.outputs:
                    tensor.shape = None if tensor.shape is None else list(reversed(tensor.shape))
            for transpose in (*region.starts, *region.ends):
                _skip(transpose)

    def check_after(self, graph: gs.Graph) -> None:
        """No region may be left."""
        for region in _regions(graph):
            raise surgery_error(
                self.name,
                "transposes are left between two products",
                where=region.ends[0].name,
                found=f"{len(region.starts)} before and {len(region.ends)} after {len(region.nodes)} operators",
                expected="none",
            )


def _starts(node: Any) -> bool:
    """Tell whether a node turns the columns of a product to rows."""
    return _transposes(node) and any(producer.op == "MatMul" for producer in node.inputs[0].inputs)


def _ends(node: Any) -> bool:
    """Tell whether a node turns rows to the columns that a product takes."""
    return _transposes(node) and any(consumer.op == "MatMul" for consumer in node.outputs[0].outputs)


def _transposes(node: Any) -> bool:
    return bool(node.op == "Transpose" and dict(node.attrs) == _TO_THE_OTHER)


def _regions(graph: gs.Graph) -> Iterable[_Region]:
    """Yield each region of ``graph``; what one is changed to is no region any more."""
    outputs = {id(tensor) for tensor in graph.outputs}
    for node in list(graph.nodes):
        # A transpose that was skipped has no output left.
        if node.outputs and _ends(node):
            region = _region_before(node)
            if region is not None and not outputs & {id(tensor) for tensor in _tensors(region)}:
                yield region


def _region_before(end: Any) -> _Region | None:
    """Return the region that ``end`` closes, None where something in it needs rows."""
    starts: dict[int, Any] = {}
    nodes: dict[int, Any] = {}
    waiting: list[Tensor] = [end.inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if isinstance(tensor, gs.Constant) and all(extent == 1 for extent in tensor.shape):
            continue
        if not tensor.inputs:
            return None
        node = tensor.inputs[0]
        if id(node) in nodes or id(node) in starts:
            continue
        if _starts(node):
            starts[id(node)] = node
        elif node.op in _POINTWISE or (node.op == "Split" and node.attrs.get("axis") == 1):
            nodes[id(node)] = node
            waiting += node.inputs[:1] if node.op == "Split" else node.inputs
        else:
            return None
    ends: dict[int, Any] = {}
    for node in (*starts.values(), *nodes.values()):
        for consumer in (consumer for tensor in node.outputs for consumer in tensor.outputs):
            if _ends(consumer):
                ends[id(consumer)] = consumer
            elif id(consumer) not in nodes:
                return None
    return _Region(list(starts.values()), list(nodes.values()), list(ends.values()))


def _tensors(region: _Region) -> Iterable[Tensor]:
    return (tensor for node in (*region.starts, *region.nodes, *region.ends) for tensor in node.outputs)


def _skip(transpose: Any) -> None:
    """Let what reads a transpose's output read its input."""
    source, target = transpose.inputs[0], transpose.outputs[0]
    for consumer in list(target.outputs):
        consumer.inputs = [source if tensor is target else tensor for tensor in consumer.inputs]
    transpose.inputs.clear()
    transpose.outputs.clear()
