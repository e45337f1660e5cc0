"""Lowering of ``Wkv4`` to a chunk of 1..N rows, in three levels of sums.

A row's result is a sum of exponentials over all rows before it. Written out for N = 64 rows that is a tensor
``[65, 64, channels]`` (85 MB at 5120 channels, several times over). Instead the chunk is cut into blocks of 8 rows, of
which 64 rows have 8:

1. each block's own sum (num, den, max) as it stands at the block's end: ``[8, 8, channels]``;
2. the state after the last valid row and at every block's start, each a sum over the incoming state and the blocks
   before that position: ``[9, 9, channels]``;
3. each row of a block, over its block's start state and the block's rows before it: ``[8, 8, 9, channels]``.

Each sum subtracts its own largest exponent, so nothing overflows, whatever keys and decays are. With w ≤ 0 the
decay, a term that is d rows old weighs e^(k + d·w); the row's own term weighs e^(k + u) (RWKV-4 paper,
arXiv:2305.13048, appendix D). No sum reaches over rows that are not there: the block that the chunk ends in ends with
the chunk, so that its sum ages by the rows that were run and by no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.chunk_rows import ChunkRows, CountedRows, padded_rows
from rowpack.surgery.wkv_row import NOTHING_SEEN, seen_maximum

BLOCK_ROWS = 8

EXCLUDED = -2e38
"""Exponent of what a sum must not see: below an empty state's maximum, and its sum with that still finite."""

_LATER_THAN_ANY_END = 1e9  # makes an age counted from it negative

SMALLEST_DEN = 1e-30
"""Stands in for the denominator of a state that has seen nothing; at its own scale any other is at least 1."""


@dataclass(frozen=True)
class _Sum:
    """A sum of weighted terms: Σ e^(x − max) · value, Σ e^(x − max), max."""

    num: Tensor
    den: Tensor
    max: Tensor


class WkvChunk:
    """The lowering for chunks of at most ``prefill_rows`` rows."""

    pads_rows = True

    def __init__(self, prefill_rows: int, *, free_rows: bool = True) -> None:
        most = padded_rows(prefill_rows)
        self._rows = ChunkRows(most, min(BLOCK_ROWS, most), free_rows)

    def __call__(self, emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        """Emit the subgraph of one call."""
        k, v, decay, bonus, num, den, maximum = inputs
        channels = int(static_shape(k)[1])
        rows = self._rows.counted(emitter)
        by_block = [self._rows.block_extent, 1, self._rows.block, channels]
        keys = emitter.reshape(rows.pad(emitter, k, "key", NOTHING_SEEN), by_block, "key_by_block")
        values = emitter.reshape(rows.pad(emitter, v, "value"), by_block, "value_by_block")
        end = emitter.cast(rows.count, "float32", "end_float")
        incoming = _Sum(num, den, seen_maximum(emitter, den, maximum))

        blocks = self._sums_of_blocks(emitter.scope("block"), rows, keys, values, end, decay)
        states = self._states_at_positions(emitter.scope("block_start"), rows, incoming, blocks, end, decay)
        starts, present = [], []
        for tensor, name in ((states.num, "num"), (states.den, "den"), (states.max, "max")):
            present.append(emitter.slice_axis(tensor, 0, 0, 1, f"{name}_present"))
            starts.append(emitter.slice_axis(tensor, 0, 1, None, f"{name}_at_starts"))
        out = self._rows_of_blocks(emitter, keys, values, _Sum(*starts), decay, bonus, channels)
        flat = emitter.reshape(out, [self._rows.extent, channels], "out_padded")
        return [rows.cut(emitter, flat, "out"), *present]

    def _sums_of_blocks(
        self, emitter: Emitter, rows: CountedRows, keys: Tensor, values: Tensor, end: Tensor, decay: Tensor
    ) -> _Sum:
        """Emit each block's sum ``[blocks, channels]`` at its end, or at the chunk's where that comes first.

        Row r has entered at position r + 1. Rows that are not there, and blocks of none, have no say: their exponent
        is that of nothing seen, whatever their age.
        """
        most, block = self._rows.most, self._rows.block
        entered = np.arange(1, most + 1, dtype=np.float32).reshape(most // block, 1, block, 1)
        block_ends = rows.table(emitter, f"wkv_block_ends_{most}", entered[:, :, -1:], [0])
        block_end = emitter.op("Min", [end, block_ends], "end")
        age = emitter.op("Sub", [block_end, rows.table(emitter, f"wkv_row_entered_{most}", entered, [0])], "age")
        exponents = emitter.op("Add", [keys, emitter.op("Mul", [age, decay], "aging")], "exponents")
        num, den, largest = _sum_terms(emitter, exponents, values, None, [1, 2])
        return _Sum(num, den, emitter.op("Squeeze", [largest, emitter.ints(1, 2)], "max"))

    def _states_at_positions(
        self, emitter: Emitter, rows: CountedRows, incoming: _Sum, blocks: _Sum, end: Tensor, decay: Tensor
    ) -> _Sum:
        """Emit the states ``[1 + blocks, channels]`` after the last valid row and at each block's start.

        Term 0 is the incoming state, which entered at position 0, term 1 + b the sum of block b, at that block's end.
        A block is behind the starts of later blocks, and all are behind the end: those after it are empty.
        """
        most = self._rows.most
        count = most // self._rows.block
        terms = [
            emitter.op("Concat", [before, inside], f"{name}_terms_before", axis=0)
            for before, inside, name in (
                (incoming.max, blocks.max, "max"),
                (incoming.num, blocks.num, "num"),
                (incoming.den, blocks.den, "den"),
            )
        ]
        entered = np.arange(count + 1, dtype=np.float32) * self._rows.block
        behind = np.concatenate([np.ones((1, count + 1), np.bool_), np.tri(count, count + 1, dtype=np.bool_)])
        # Only the ages at the end are not known ahead; a block that the end lies in ends there.
        known = np.zeros((count + 1, count + 1), np.float32)
        known[1:] = np.where(behind[1:], entered[:-1, None] - entered, 0)
        counted_from = np.full((count + 1, count + 1), _LATER_THAN_ANY_END, np.float32)
        counted_from[0] = entered
        ceiling = np.where(behind, np.float32(0), np.float32(EXCLUDED))

        def by_position(name: str, table: np.ndarray[Any, Any]) -> Tensor:
            return rows.table(emitter, f"wkv_{name}_{most}", table[:, :, None], [1, 1])

        age = emitter.op(
            "Max",
            [
                emitter.op("Sub", [end, by_position("counted_from", counted_from)], "age_at_end"),
                by_position("known_age", known),
            ],
            "age",
        )
        exponents = emitter.op(
            "Sum",
            [terms[0], emitter.op("Mul", [age, decay], "aging"), by_position("behind", ceiling)],
            "exponents",
        )
        num, den, largest = _sum_terms(emitter, exponents, terms[1], terms[2], [1])
        return _Sum(num, den, emitter.op("Squeeze", [largest, emitter.ints(1)], "max"))

    def _rows_of_blocks(
        self,
        emitter: Emitter,
        keys: Tensor,
        values: Tensor,
        starts: _Sum,
        decay: Tensor,
        bonus: Tensor,
        channels: int,
    ) -> Tensor:
        """Emit out ``[blocks, block rows, channels]``: each row over its block's start state and earlier rows.

        The start state joins as one term like a row: its mean, at the exponent max + ln den.
        """
        blocks = self._rows.block_extent
        den = emitter.op("Max", [starts.den, emitter.floats("wkv_smallest_den", SMALLEST_DEN)], "den_at_start")
        weight = emitter.op("Add", [starts.max, emitter.op("Log", [den], "log_den_at_start")], "weight_at_start")
        mean = emitter.op("Div", [starts.num, den], "mean_at_start")

        def terms(start: Tensor, rows: Tensor, name: str) -> Tensor:
            start_row = emitter.reshape(start, [blocks, 1, 1, channels], f"{name}_start")
            return emitter.op("Concat", [start_row, rows], name, axis=2)

        offsets = self._offsets(emitter, decay, bonus)
        exponents = emitter.op("Add", [terms(weight, keys, "row_keys"), offsets], "row_exponents")
        num, den, _ = _sum_terms(emitter.scope("row"), exponents, terms(mean, values, "row_values"), None, [2])
        return emitter.op("Div", [num, den], "block_out")

    def _offsets(self, emitter: Emitter, decay: Tensor, bonus: Tensor) -> Tensor:
        """Emit ``[block rows, block rows + 1, channels]``: what age and bonus add to a term's exponent."""
        block = self._rows.block
        row = np.arange(block).reshape(-1, 1, 1)
        term = np.arange(block + 1).reshape(1, -1, 1)
        own, later = term == row + 1, term > row + 1
        age = np.where(own | later, 0, row - term).astype(np.float32)
        ages = emitter.op("Mul", [emitter.constant(f"wkv_block_age_{block}", age), decay], "offset_of_age")
        own_mask = emitter.constant(f"wkv_block_own_{block}", own.astype(np.float32))
        bonuses = emitter.op("Mul", [own_mask, bonus], "offset_of_bonus")
        excluded = np.where(later, np.float32(EXCLUDED), np.float32(0))
        ceiling = emitter.constant(f"wkv_block_later_{block}", excluded)
        return emitter.op("Sum", [ages, bonuses, ceiling], "offsets")


def _sum_terms(
    emitter: Emitter, exponents: Tensor, values: Tensor, weights: Tensor | None, axes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Emit Σ e^(x − m) · value, Σ e^(x − m) · weight over ``axes``, and m, the largest exponent x, which keeps them."""
    summed = emitter.ints(*axes)
    largest = emitter.op("ReduceMax", [exponents, summed], "largest", keepdims=1)
    scale = emitter.op("Exp", [emitter.op("Sub", [exponents, largest], "distance")], "scale")
    num = emitter.op("ReduceSum", [emitter.op("Mul", [scale, values], "num_terms"), summed], "num", keepdims=0)
    weighted = scale if weights is None else emitter.op("Mul", [scale, weights], "den_terms")
    return num, emitter.op("ReduceSum", [weighted, summed], "den", keepdims=0), largest
