"""Subgraphs that the exported graph spells in several nodes, found by their shape, and their replacement.

Mixers are calls of functions and are replaced by name (``mixer_replacement.py``). What is smaller, a norm or a gate, is
spelled in plain operators, so that every runtime takes it; a fused lowering finds it again here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.mixer_replacement import Lowering, take_place
from rowpack.surgery.surgery_pass import surgery_error


@dataclass(frozen=True)
class Match:
    """One place where a pattern was found.

    ``nodes`` compute ``outputs`` from ``inputs`` and nothing else reads what lies between. ``shapes`` are those of the
    inputs, ``attributes`` numbers that the nodes hold.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    shapes: tuple[list[int | str], ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Pattern:
    """A pattern's name, under which it is looked up as mixers are, and what finds the match that ends in a node."""

    name: str
    match: Callable[[Any], Match | None]

    def find(self, graph: gs.Graph) -> list[Match]:
        """Return every match in ``graph``, in its order, whose inner tensors nobody else reads.

        Graphs inside nodes are left alone.
        """
        found = [match for node in graph.nodes if (match := self.match(node)) is not None]
        given_out = {id(tensor) for tensor in graph.outputs}
        return [match for match in found if _is_closed(match, given_out)]


class PatternReplacement:
    """Replace every match of ``pattern`` by what ``lowering`` emits."""

    def __init__(self, pattern: Pattern, lowering: Lowering) -> None:
        self._pattern = pattern
        self._lowering = lowering

    @property
    def name(self) -> str:
        """Name of the pass: the pattern's and the lowering's."""
        return f"{self._pattern.name} by {getattr(self._lowering, '__name__', type(self._lowering).__name__)}"

    def check_before(self, graph: gs.Graph) -> None:
        """Nothing is asked: a graph without the pattern stays as it is."""

    def apply(self, graph: gs.Graph) -> None:
        """Emit the replacement of each match; what read a match's outputs reads it."""
        emitter = Emitter(graph)
        successors: dict[int, Tensor] = {}
        for match in self._pattern.find(graph):
            scope = emitter.at_root(match.nodes[0].name)
            # What a match reads may be what an earlier one gave.
            inputs = [successors.get(id(tensor), tensor) for tensor in match.inputs]
            results = self._lowering(scope, inputs, dict(match.attributes))
            for node in match.nodes:
                node.inputs.clear()
                node.outputs.clear()
            for old, new in zip(match.outputs, results, strict=True):
                take_place(emitter, old, new)
                successors[id(old)] = new
            matched = {id(node) for node in match.nodes}
            graph.nodes = [node for node in graph.nodes if id(node) not in matched]

    def check_after(self, graph: gs.Graph) -> None:
        """No match may be left."""
        left = self._pattern.find(graph)
        if left:
            raise surgery_error(
                self.name,
                "matches are left",
                where=left[0].nodes[0].name,
                found=f"{len(left)} of them",
                expected="none",
            )


def producer(tensor: Tensor, op: str) -> Any | None:
    """Return the node that makes ``tensor`` if it is a standard operator ``op``, else None."""
    node = tensor.inputs[0] if len(tensor.inputs) == 1 else None
    return node if node is not None and node.op == op and not node.domain else None


def chain(node: Any, ops: Sequence[str]) -> list[Any] | None:
    """Return ``node`` and the producers before it, one an entry of ``ops`` (the first is ``node``'s own), or None.

    The walk goes through each node's first input, and through the divisor of a division.
    """
    if node.op != ops[0] or node.domain:
        return None
    nodes = [node]
    for op in ops[1:]:
        before = producer(nodes[-1].inputs[1 if nodes[-1].op == "Div" else 0], op)
        if before is None:
            return None
        nodes.append(before)
    return nodes


def number(tensor: Tensor) -> float | None:
    """Return the value of a constant of one element, or None."""
    return float(tensor.values.item()) if isinstance(tensor, gs.Constant) and tensor.values.size == 1 else None


def is_vector(tensor: Tensor) -> bool:
    """Tell whether ``tensor`` is a constant with one dimension."""
    return isinstance(tensor, gs.Constant) and len(tensor.shape) == 1


def _is_closed(match: Match, given_out: set[int]) -> bool:
    """Tell whether what lies inside a match is read by its own nodes only, and is no output of the model."""
    own, ends = {id(node) for node in match.nodes}, {id(tensor) for tensor in match.outputs}
    inner = [tensor for node in match.nodes for tensor in node.outputs if id(tensor) not in ends]
    return not any(
        id(tensor) in given_out or any(id(reader) not in own for reader in tensor.outputs) for tensor in inner
    )
