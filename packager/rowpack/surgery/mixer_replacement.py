"""Replace every call of one mixer function by the nodes that a lowering emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.row_count import CACHE_ROWS, ROWS, summands
from rowpack.surgery.surgery_pass import function_calls, surgery_error

Lowering = Callable[[Emitter, Sequence[Tensor], dict[str, Any]], Sequence[Tensor]]
"""Emit the replacement of one call: (emitter at the call's scope, inputs, attributes) → outputs in order."""


class MixerReplacement:
    """Replace all calls of ``function``; a call's replacement may have at most ``node_budget`` nodes."""

    def __init__(self, function: str, lowering: Lowering, node_budget: int) -> None:
        self._function = function
        self._lowering = lowering
        self._node_budget = node_budget

    @property
    def function(self) -> str:
        """The mixer function whose calls are replaced."""
        return self._function

    @property
    def pads_rows(self) -> bool:
        """Whether the lowering computes rows that are not there, so that one row costs as much as a chunk."""
        return pads_rows_of(self._lowering)

    @property
    def name(self) -> str:
        """Name of the pass: the lowering's."""
        return f"{self._function} by {getattr(self._lowering, '__name__', type(self._lowering).__name__)}"

    def check_before(self, graph: gs.Graph) -> None:
        """Every input of a call must have a declared shape: lowerings read their dimensions there."""
        for call in function_calls(graph, self._function):
            for tensor in call.inputs:
                if tensor.shape is None or not all(_is_known(extent) for extent in tensor.shape):
                    raise surgery_error(
                        self.name,
                        "an input of the call has no declared shape that a lowering can read",
                        where=call.name,
                        found=f"{tensor.name} with shape {tensor.shape}",
                        expected=f"numbers, and {ROWS} or {CACHE_ROWS} where rows are counted",
                    )

    def apply(self, graph: gs.Graph) -> None:
        """Emit the replacement of each call and let its outputs take the call's places."""
        calls = function_calls(graph, self._function)
        emitter = Emitter(graph)
        for call in calls:
            before = {id(node) for node in graph.nodes}
            outputs = list(call.outputs)
            replacements = self._lowering(emitter.at_root(call.name), list(call.inputs), dict(call.attrs))
            for old, new in zip(outputs, replacements, strict=True):
                take_place(emitter, old, new)
            # What is named after no call is there once for all of them.
            own = [node for node in graph.nodes if id(node) not in before and node.name.startswith(f"{call.name}.")]
            emitted = _run_nodes(own)
            if emitted > self._node_budget:
                raise surgery_error(
                    self.name,
                    "the replacement has too many nodes",
                    where=call.name,
                    found=f"{emitted} nodes",
                    expected=f"at most {self._node_budget}",
                )
            call.inputs.clear()
            call.outputs.clear()
        replaced = {id(call) for call in calls}
        graph.nodes = [node for node in graph.nodes if id(node) not in replaced]

    def check_after(self, graph: gs.Graph) -> None:
        """No call may be left."""
        left = function_calls(graph, self._function)
        if left:
            raise surgery_error(
                self.name,
                "calls are left",
                where=left[0].name,
                found=f"{len(left)} calls",
                expected="none",
            )


def pads_rows_of(lowering: Lowering) -> bool:
    """Tell whether ``lowering`` says that it pads rows: a class of lowerings then has ``pads_rows``."""
    return bool(getattr(lowering, "pads_rows", False))


def _run_nodes(nodes: Sequence[Any]) -> int:
    """Return how many nodes a call runs at most: of the graphs inside a node, one."""
    return sum(1 + max((_run_nodes(inner.nodes) for inner in node.subgraphs()), default=0) for node in nodes)


def _is_known(extent: int | str) -> bool:
    """Tell whether ``extent`` is a number or counts rows; any other free extent is a width nobody knows."""
    return all(word in (ROWS, CACHE_ROWS) or word.isdigit() for word in summands(extent))


def take_place(emitter: Emitter, old: Tensor, new: Tensor) -> None:
    """Let everything that read ``old`` read ``new``; a model output keeps its name, type and shape."""
    graph = emitter.graph
    for consumer in list(old.outputs):
        consumer.inputs = [new if tensor is old else tensor for tensor in consumer.inputs]
    for index, output in enumerate(graph.outputs):
        if output is not old:
            continue
        if not new.inputs or any(other is new for other in graph.outputs):
            # An input handed through, or a tensor that is a model output already, cannot take a second name.
            new = emitter.op("Identity", [new], "handed_on")
        new.name = old.name
        graph.outputs[index] = new
    if new.inputs:
        new.dtype, new.shape = old.dtype, old.shape
