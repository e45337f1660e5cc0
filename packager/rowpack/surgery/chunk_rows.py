"""Say how many rows the mixers of a prefill graph compute in a call: those that it has, or always the same number.

A short prompt, and the end of every other one, has fewer rows than a chunk takes. A runtime that takes shapes as they
come computes those rows and no others (free rows); one that compiles shapes ahead is given chunks of one size, N.

Rows that are not there are zero for the delta rule: a zero key writes nothing, a zero log decay keeps the state, so
they are the identity. Other mixers say what has no say in their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.row_count import ROWS

_SCOPE = "chunk_rows"


def padded_rows(prefill_rows: int) -> int:
    """Return the most rows inside a chunk: the power of two that holds ``prefill_rows``."""
    return max(2, 1 << (prefill_rows - 1).bit_length())


@dataclass(frozen=True)
class ChunkRows:
    """How many of 1..``most`` rows, a power of two, are computed: whole blocks of ``block`` rows.

    With ``is_free`` rows as many blocks as the call has, otherwise all.
    """

    most: int
    block: int = 1
    is_free: bool = True

    @property
    def extent(self) -> int:
        """What stands for the computed rows in the shape of a Reshape."""
        return -1 if self.is_free else self.most

    @property
    def block_extent(self) -> int:
        """What stands for the computed blocks in the shape of a Reshape."""
        return -1 if self.is_free else self.most // self.block

    def counted(self, emitter: Emitter) -> CountedRows:
        """Return the rows of the calls of the main graph, counted by the first mixer that asks."""
        counted: CountedRows = emitter.once(self, lambda: self._count(emitter.main_graph(_SCOPE)))
        return counted

    def _count(self, main: Emitter) -> CountedRows:
        """Count the rows in the first of the graph's inputs that has a row for each."""
        by_row = next(tensor for tensor in main.graph.inputs if tensor.shape[:1] == [ROWS])
        count = main.op("Shape", [by_row], "count", start=0, end=1)
        if not self.is_free:
            return CountedRows(self, count, None, _pads(main, main.ints(self.most), count))
        if self.block == 1:
            return CountedRows(self, count, count, None)
        reached = main.op("Add", [count, main.ints(self.block - 1)], "up_to_the_last_block")
        blocks = main.op("Div", [reached, main.ints(self.block)], "blocks")
        computed = main.op("Mul", [blocks, main.ints(self.block)], "computed")
        return CountedRows(self, count, blocks, _pads(main, computed, count))


@dataclass(frozen=True)
class CountedRows:
    """The rows of the calls of one graph: ``count [1]`` (int64), and what has as many.

    ``blocks [1]`` are those that are computed where rows are free, ``pads [4]`` what ONNX's Pad is given to reach
    them; None where there is nothing to pad.
    """

    rows: ChunkRows
    count: Tensor
    blocks: Tensor | None
    pads: Tensor | None
    _cut: dict[str, Tensor] = field(default_factory=dict)

    def pad(self, emitter: Emitter, x: Tensor, name: str, value: float = 0.0) -> Tensor:
        """Emit float32 ``x [S, width]`` with as many rows as are computed, ``value`` in those that are not there."""
        if self.pads is None:
            return x
        filler = emitter.scalar("padding" if value else "zero_padding", value, "float32")
        return emitter.op("Pad", [x, self.pads, filler], f"{name}_padded")

    def cut(self, emitter: Emitter, computed: Tensor, name: str) -> Tensor:
        """Emit the first S rows of ``computed``."""
        if self.pads is None:
            return computed
        return emitter.op("Slice", [computed, emitter.ints(0), self.count, emitter.ints(0)], name)

    def table(self, emitter: Emitter, name: str, values: np.ndarray[Any, Any], more: Sequence[int]) -> Tensor:
        """Return what a call needs of a constant that has an entry a block, and ``more[axis]``, on its first axes.

        That is all of it, or, of free rows, what the computed blocks need, cut once a graph for equal names.
        """
        full = emitter.constant(name, values)
        if self.blocks is None:
            return full
        if name not in self._cut:
            main = emitter.main_graph(_SCOPE)
            starts, axes = main.ints(*[0] * len(more)), main.ints(*range(len(more)))
            self._cut[name] = main.op("Slice", [full, starts, self._ends(main, more), axes], name)
        return self._cut[name]

    def _ends(self, main: Emitter, more: Sequence[int]) -> Tensor:
        """Return the number of computed blocks and ``more[axis]``, int64 ``[axes]``."""
        name = "_".join(["blocks_and", *map(str, more)])
        if name not in self._cut:
            self._cut[name] = main.op("Add", [self.blocks, main.ints(*more)], name)
        return self._cut[name]


def _pads(main: Emitter, computed: Tensor, count: Tensor) -> Tensor:
    """Emit the pads of two axes that bring ``count`` rows to ``computed``."""
    missing = main.op("Sub", [computed, count], "missing")
    return main.op("Concat", [main.ints(0, 0), missing, main.ints(0)], "pads", axis=0)
