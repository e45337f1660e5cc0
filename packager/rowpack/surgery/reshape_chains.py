"""Reshape once where a lowering and what follows it each reshape: nodes cost time in every call, and at load."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.surgery.pattern import producer


class JoinReshapes:
    """Let a Reshape of a Reshape read what the first one reads, and leave out one that changes nothing.

    Sizes that are copied from the input (0) tell of the shape in between, so such nodes stay.
    """

    name = "join reshapes"

    def check_before(self, graph: gs.Graph) -> None:
        """Nothing is asked."""

    def apply(self, graph: gs.Graph) -> None:
        """Rewire the readers; nodes that nobody reads any more are removed by the clean-up after all passes."""
        given_out = {id(tensor) for tensor in graph.outputs}
        for node in graph.nodes:
            if not _is_reshape(node):
                continue
            while (before := producer(node.inputs[0], "Reshape")) is not None:
                node.inputs = [before.inputs[0], node.inputs[1]]
            source, result = node.inputs[0], node.outputs[0]
            if id(result) not in given_out and _changes_nothing(source, node.inputs[1]):
                for reader in list(result.outputs):
                    reader.inputs = [source if tensor is result else tensor for tensor in reader.inputs]

    def check_after(self, graph: gs.Graph) -> None:
        """Nothing is promised of a graph whose sizes are copied."""


def _is_reshape(node: Any) -> bool:
    """Tell whether ``node`` is a Reshape to sizes that are written down, none of them copied."""
    is_plain = node.op == "Reshape" and not node.domain and isinstance(node.inputs[1], gs.Constant)
    return is_plain and 0 not in node.inputs[1].values


def _changes_nothing(source: Any, sizes: gs.Constant) -> bool:
    """Tell whether ``source`` declares the very sizes; a single free extent is what is inferred (−1)."""
    wanted = [int(size) for size in sizes.values]
    if source.shape is None or len(source.shape) != len(wanted):
        return False
    declared = [extent if isinstance(extent, int) else -1 for extent in source.shape]
    return declared == wanted
