"""Lowerings of ``TokenShift``: one row, and a chunk of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor


def token_shift_row(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Hand the state on as the previous row, and the row on as the state."""
    x, previous = inputs
    return [previous, x]


def token_shift_chunk(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the rows moved down by one with the state on top; the last row is the new state."""
    x, previous = inputs
    joined = emitter.op("Concat", [previous, x], "previous_and_rows", axis=0)
    shifted = emitter.slice_axis(joined, 0, 0, -1, "shifted")
    present = emitter.op("Gather", [x, emitter.ints(-1)], "present", axis=0)
    return [shifted, present]
