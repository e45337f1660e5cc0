"""Lowering of ``Wkv4`` to a chunk of 1..N rows, in two levels of sums.

A row's result is a sum of exponentials over all rows before it. Written out for N = 64 rows that is a tensor
``[65, 64, channels]`` (85 MB at 5120 channels, several times over). Instead the chunk is cut into blocks of 8 rows:

1. the state (num, den, max) at every block's start and after the last valid row, each a sum over the incoming
   state and the rows before that position: ``[9, 65, channels]``;
2. each row of a block, over its block's start state and the block's rows before it: ``[8, 8, 9, channels]``.

Each sum subtracts its own largest exponent, so nothing overflows, whatever keys and decays are. With w ≤ 0 the
decay, a term that is d rows old weighs e^(k + d·w); the row's own term weighs e^(k + u) (RWKV-4 paper,
arXiv:2305.13048, appendix D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.row_padding import padded_rows
from rowpack.surgery.wkv_row import NOTHING_SEEN, seen_maximum

BLOCK_ROWS = 8

EXCLUDED = -2e38
"""Exponent of what a sum must not see: below an empty state's maximum, and its sum with that still finite."""


@dataclass(frozen=True)
class _Terms:
    """The terms of a sum: exponents, and what they weigh in numerator and denominator."""

    exponents: Tensor
    num: Tensor
    den: Tensor


class WkvChunk:
    """The lowering for chunks of at most ``prefill_rows`` rows."""

    def __init__(self, prefill_rows: int) -> None:
        self._rows = padded_rows(prefill_rows)
        self._block = min(BLOCK_ROWS, self._rows)
        self._blocks = self._rows // self._block

    def __call__(self, emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        """Emit the subgraph of one call."""
        k, v, decay, bonus, num, den, maximum = inputs
        channels = int(static_shape(k)[1])
        count = emitter.op("Shape", [k], "row_count", start=0, end=1)
        terms = self._all_terms(emitter, k, v, num, den, seen_maximum(emitter, den, maximum), channels)
        states = self._states_at_positions(emitter.scope("block_start"), terms, decay, count)

        sizes, halves = [self._blocks, 1], ["blocks", "present"]
        starts, present = [], []
        for tensor, name in zip(states, ("num", "den", "max"), strict=True):
            block_part, last = emitter.split(tensor, sizes, 0, f"{name}_states", halves)
            starts.append(emitter.reshape(block_part, [self._blocks, 1, 1, channels], f"{name}_at_start"))
            present.append(last)
        out = self._rows_of_blocks(emitter, terms, starts, decay, bonus, channels)
        flat = emitter.reshape(out, [self._rows, channels], "out_padded")
        valid = emitter.op("Slice", [flat, emitter.ints(0), count, emitter.ints(0)], "out")
        return [valid, *present]

    def _all_terms(
        self, emitter: Emitter, k: Tensor, v: Tensor, num: Tensor, den: Tensor, maximum: Tensor, channels: int
    ) -> _Terms:
        """Emit ``[rows + 1, channels]`` each: the incoming state first, then the rows, then empty rows."""
        rows = self._rows
        shape = f"{rows}x{channels}"
        empty = emitter.constant(f"wkv_empty_{shape}", np.full((rows, channels), NOTHING_SEEN, np.float32))
        zeros = emitter.constant(f"zero_rows_{shape}", np.zeros((rows, channels), np.float32))
        ones = emitter.constant(f"one_rows_{shape}", np.ones((rows, channels), np.float32))
        keys = emitter.op("Concat", [maximum, k, empty], "state_keys_and_padding", axis=0)
        values = emitter.op("Concat", [num, v, zeros], "state_values_and_padding", axis=0)
        return _Terms(
            emitter.slice_axis(keys, 0, 0, rows + 1, "term_keys"),
            emitter.slice_axis(values, 0, 0, rows + 1, "term_values"),
            emitter.op("Concat", [den, ones], "term_weights", axis=0),
        )

    def _states_at_positions(self, emitter: Emitter, terms: _Terms, decay: Tensor, count: Tensor) -> list[Tensor]:
        """Emit (num, den, max) ``[blocks + 1, channels]`` at each block's start and after row ``count``.

        Term j entered before row j (the incoming state is term 0), so at position p it is p − j rows old.
        """
        starts = np.arange(0, self._rows, self._block, dtype=np.float32).reshape(-1, 1, 1)
        index = np.arange(self._rows + 1, dtype=np.float32).reshape(1, -1, 1)
        end = emitter.reshape(emitter.cast(count, "float32", "end_float"), [1, 1, 1], "end")
        start_constant = emitter.constant(f"wkv_block_starts_{self._rows}", starts)
        positions = emitter.op("Concat", [start_constant, end], "positions", axis=0)
        age = emitter.op("Sub", [positions, emitter.constant(f"wkv_term_index_{self._rows}", index)], "age")
        aged = emitter.op("Add", [terms.exponents, emitter.op("Mul", [age, decay], "aging")], "aged")
        future = emitter.op("Less", [age, emitter.floats("zero", 0.0, scalar=True)], "future")
        excluded = emitter.floats("wkv_excluded", EXCLUDED, scalar=True)
        nothing = emitter.floats("zero", 0.0, scalar=True)
        # Added rather than chosen: Where over the whole tensor takes four times as long as Add.
        ceiling = emitter.op("Where", [future, excluded, nothing], "ceiling")
        exponents = emitter.op("Add", [aged, ceiling], "exponents")
        return list(_sum_terms(emitter, _Terms(exponents, terms.num, terms.den), 1, squeeze=True))

    def _rows_of_blocks(
        self,
        emitter: Emitter,
        terms: _Terms,
        starts: Sequence[Tensor],
        decay: Tensor,
        bonus: Tensor,
        channels: int,
    ) -> Tensor:
        """Emit out ``[blocks, block rows, 1, channels]``: each row over its block's start state and earlier rows."""
        block, blocks = self._block, self._blocks
        start_num, start_den, start_max = starts

        def by_block(tensor: Tensor, name: str) -> Tensor:
            rows = emitter.slice_axis(tensor, 0, 1, None, f"{name}_rows")
            return emitter.reshape(rows, [blocks, 1, block, channels], f"{name}_by_block")

        ones = emitter.constant(
            f"wkv_block_ones_{blocks}x{block}x{channels}", np.ones((blocks, 1, block, channels), np.float32)
        )
        keys = emitter.op("Concat", [start_max, by_block(terms.exponents, "key")], "block_keys", axis=2)
        values = emitter.op("Concat", [start_num, by_block(terms.num, "value")], "block_values", axis=2)
        weights = emitter.op("Concat", [start_den, ones], "block_weights", axis=2)
        exponents = emitter.op("Add", [keys, self._offsets(emitter, decay, bonus)], "block_exponents")
        num, den, _ = _sum_terms(emitter.scope("row"), _Terms(exponents, values, weights), 2, squeeze=False)
        return emitter.op("Div", [num, den], "block_out")

    def _offsets(self, emitter: Emitter, decay: Tensor, bonus: Tensor) -> Tensor:
        """Emit ``[block rows, block rows + 1, channels]``: what age and bonus add to a term's exponent.

        The runtime folds these nodes to one small constant at load: they depend on weights only.
        """
        block = self._block
        row = np.arange(block).reshape(-1, 1, 1)
        term = np.arange(block + 1).reshape(1, -1, 1)
        own, later = term == row + 1, term > row + 1
        age = np.where(own | later, 0, row - term).astype(np.float32)
        ages = emitter.op("Mul", [emitter.constant(f"wkv_block_age_{block}", age), decay], "offset_of_age")
        own_mask = emitter.constant(f"wkv_block_own_{block}", own.astype(np.float32))
        bonuses = emitter.op("Mul", [own_mask, bonus], "offset_of_bonus")
        both = emitter.op("Add", [ages, bonuses], "offset_of_seen")
        excluded = np.where(later, np.float32(EXCLUDED), np.float32(0))
        return emitter.op("Add", [both, emitter.constant(f"wkv_block_later_{block}", excluded)], "offsets")


def _sum_terms(emitter: Emitter, terms: _Terms, axis: int, *, squeeze: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Emit (Σ e^(x − m) num, Σ e^(x − m) den, m) over ``axis``, m the largest exponent x."""
    axes = emitter.ints(axis)
    largest = emitter.op("ReduceMax", [terms.exponents, axes], "largest", keepdims=1)
    scale = emitter.op("Exp", [emitter.op("Sub", [terms.exponents, largest], "distance")], "scale")
    sums = []
    for part, name in ((terms.num, "num"), (terms.den, "den")):
        weighted = emitter.op("Mul", [scale, part], f"{name}_terms")
        sums.append(emitter.op("ReduceSum", [weighted, axes], f"{name}_sum", keepdims=0 if squeeze else 1))
    if squeeze:
        largest = emitter.op("Squeeze", [largest, axes], "max")
    return sums[0], sums[1], largest
