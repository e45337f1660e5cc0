"""Lowering of a mixer to an If: one row by the mixer's step, several by its chunk.

A chunk that is padded to a fixed number of rows costs one row as much as all of them, and one that is not may still
do more for it than the step does. Where one session is to run prompts and steps, the rows of a call are counted in
the graph, and a single one takes the branch that the decode engine has.
Branches read what they need from the graph around them; their weights and constants stay the main graph's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.mixer_replacement import Lowering

BRANCH = "ai.onnx.If"
"""How a check of operators names the node."""

BRANCH_NODES = 3
"""Nodes beside those of the branch that is taken."""


class OneRowCondition:
    """Whether a call of the graph has one row; counted once a graph, by the first that asks."""

    def __init__(self) -> None:
        self._is_one_row: Tensor | None = None

    def tensor(self, emitter: Emitter, rows: Tensor) -> Tensor:
        """Return the condition; ``rows`` has a row for each of the call's."""
        if self._is_one_row is None:
            count = emitter.op("Shape", [rows], "branch_rows", start=0, end=1)
            self._is_one_row = emitter.op("Equal", [count, emitter.ints(1)], "is_one_row")
        return self._is_one_row


class OneRowBranch:
    """The lowering that takes ``row`` for a call of one row, and ``chunk`` for more.

    An instance is for one graph, and may share its ``condition`` with others of that graph.
    """

    def __init__(self, row: Lowering, chunk: Lowering, condition: OneRowCondition | None = None) -> None:
        self._row = row
        self._chunk = chunk
        self._condition = condition or OneRowCondition()

    def __call__(self, emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        """Emit the subgraph of one call; the first input has a row for each of the call's, as in every call."""
        condition = self._condition.tensor(emitter, inputs[0])
        branches = []
        for name, lowering in (("one_row", self._row), ("rows", self._chunk)):
            inner = emitter.inner_graph(name)
            for result in lowering(inner, inputs, attributes):
                # A graph inside a node can only give out what one of its own nodes makes.
                is_handed_on = any(result is given for given in inputs)
                tensor = inner.op("Identity", [result], "handed_on") if is_handed_on else result
                tensor.dtype = inputs[0].dtype
                inner.graph.outputs.append(tensor)
            branches.append(inner.graph)
        one_row, rows = branches
        outputs: list[tuple[str | None, str | None, Sequence[int | str] | None]] = [
            (str(index), None, None) for index in range(len(rows.outputs))
        ]
        return emitter.multi_op("If", [condition], "branch", outputs, then_branch=one_row, else_branch=rows)
