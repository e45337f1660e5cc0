"""Lowering of ``GatedDeltaRule`` to a chunk of 1..N rows.

With γ the inclusive cumulative sum of the log decays and S₀ the incoming state,

    A_ij = β_i exp(γ_i − γ_j) (k_i·k_j), j < i          (I + A) U = diag(β) (V − diag(exp γ) K S₀)
    O = diag(exp γ) Q S₀ + M U,  M_ti = exp(γ_t − γ_i)(q_t·k_i), i ≤ t
    S' = exp(γ_N) S₀ + (K ∘ exp(γ_N − γ))ᵀ U

(Yang et al., arXiv:2412.06464, section 3.3; the recurrence itself is the oracle of the tests.)

Only differences of γ are exponentiated, clamped to ≤ 0 and masked before exp: exp(−γ) overflows within a chunk.
Each difference γ_i − γ_j is summed by itself, over the rows between: after one row that forgets everything γ is large,
and subtracting two large sums would leave the slow decays that follow with an error of 1e-4. One cumulative sum over a
matrix gives them all, and the decays towards the state are the last row of the same matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.chunk_rows import ChunkRows, CountedRows, padded_rows
from rowpack.surgery.delta_rule_geometry import DeltaRuleGeometry
from rowpack.surgery.unit_lower_solve import solve_unit_lower

ABOVE_DIAGONAL = -1e30
"""Log decay of what lies in a row's future: exp gives an exact zero."""

MOST_FREE_ROWS = 64
"""Of larger chunks all rows are computed: their matrices are solved block by block, with blocks known ahead.

Measured on a layer of 16 heads of 128: 19, 50 and 150 ms for 128, 256 and 512 rows, and 24, 98 and 458 with matrices
inverted whole, as those of free rows are; 64 rows take 3.2 and 3.4 ms, 16 rows 2.2 and 0.7.
"""


class DeltaRuleChunk:
    """The lowering for chunks of at most ``prefill_rows`` rows."""

    pads_rows = True

    def __init__(self, prefill_rows: int, *, free_rows: bool = True) -> None:
        most = padded_rows(prefill_rows)
        self._rows = ChunkRows(most, is_free=free_rows and most <= MOST_FREE_ROWS)

    def __call__(self, emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        """Emit the subgraph of one call."""
        q, k, v, decay, beta, state = inputs
        shape = DeltaRuleGeometry.of(q, state)
        heads, group, key, value = shape.key_heads, shape.group, shape.key_dim, shape.value_dim
        rows = self._rows.counted(emitter)

        memory = emitter.reshape(state, [heads, group, key, value], "state_grouped")
        queries = self._heads(emitter, rows, q, [heads, 1, key], "query")
        query_rows = emitter.transpose(queries, [1, 2, 0, 3], "query_rows")
        keys = self._heads(emitter, rows, k, [heads, 1, key], "key")
        key_rows = emitter.transpose(keys, [1, 2, 0, 3], "key_rows")
        key_columns = emitter.transpose(keys, [1, 2, 3, 0], "key_columns")
        by_row = self._heads(emitter, rows, v, [heads, group, value], "value")
        values = emitter.transpose(by_row, [1, 2, 0, 3], "value_rows")
        strength = self._column(emitter, rows, beta, heads, group, "strength")

        log_decay = self._column(emitter, rows, decay, heads, group, "log_decay")
        decay_matrix, growth = self._decays(emitter, rows, log_decay)
        # Keys and queries read the same things: one product each for both.
        reading = emitter.op("Concat", [key_rows, query_rows], "key_and_query_rows", axis=2)
        halves = ["of_key", "of_query"]
        products = emitter.op("MatMul", [reading, key_columns], "products")
        key_key, query_key = emitter.halves(products, 2, "products_split", halves)
        reads = emitter.op("MatMul", [reading, memory], "state_reads")
        key_read, query_read = emitter.halves(reads, 2, "state_reads_split", halves)

        strong = emitter.op("Mul", [emitter.op("Mul", [decay_matrix, key_key], "decayed_keys"), strength], "a")
        recalled = emitter.op("Mul", [growth, key_read], "recalled")
        error = emitter.op("Sub", [values, recalled], "error")
        right = emitter.op("Mul", [strength, error], "right_side")
        update = solve_unit_lower(emitter.scope("solve"), strong, right, rows, heads, group)

        attention = emitter.op("Mul", [decay_matrix, query_key], "decayed_attention")
        inside = emitter.op("MatMul", [attention, update], "read_of_chunk")
        before = emitter.op("Mul", [growth, query_read], "read_of_state")
        out = emitter.op("Add", [before, inside], "out_grouped")
        out_rows = emitter.transpose(out, [2, 0, 1, 3], "out_by_row")
        out_flat = emitter.reshape(out_rows, [self._rows.extent, heads * group * value], "out_padded")

        to_state = emitter.slice_axis(decay_matrix, 2, -1, None, "decay_to_state")
        keys_to_state = emitter.op("Mul", [key_columns, to_state], "keys_to_state")
        kept = emitter.slice_axis(growth, 2, -1, None, "decay_of_state")
        # The sum is taken in the state's own shape: a reshape as the model's output would copy the whole state.
        by_head = [heads * group, key, value]
        written_grouped = emitter.op("MatMul", [keys_to_state, update], "written_grouped")
        written = emitter.reshape(written_grouped, by_head, "written_state")
        decayed = emitter.reshape(emitter.op("Mul", [memory, kept], "decayed_grouped"), by_head, "decayed_state")
        present = emitter.op("Add", [decayed, written], "present")
        return [rows.cut(emitter, out_flat, "out"), present]

    def _heads(self, emitter: Emitter, rows: CountedRows, x: Tensor, shape: list[int], name: str) -> Tensor:
        """Emit ``[S, heads · group · dim]`` → ``[rows, heads, group, dim]``, with as many rows as are computed."""
        return emitter.reshape(rows.pad(emitter, x, name), [self._rows.extent, *shape], f"{name}_heads")

    def _column(self, emitter: Emitter, rows: CountedRows, x: Tensor, heads: int, group: int, name: str) -> Tensor:
        """Emit ``[S, value_heads]`` → ``[heads, group, rows, 1]``, with as many rows as are computed."""
        by_head = emitter.transpose(rows.pad(emitter, x, name), [1, 0], f"{name}_by_head")
        return emitter.reshape(by_head, [heads, group, self._rows.extent, 1], f"{name}_column")

    def _decays(self, emitter: Emitter, rows: CountedRows, column: Tensor) -> tuple[Tensor, Tensor]:
        """Emit exp(γ_i − γ_j) for j ≤ i, zero elsewhere, and exp(γ_i) as a column, from the log decays in one."""
        most = self._rows.most
        # Column 0 sums from the incoming state on, column 1 + j from row j on: g_k counts where k > j.
        counted = np.concatenate([np.ones((most, 1)), np.tri(most, k=-1)], axis=1).astype(np.float32)
        decay_terms = rows.table(emitter, f"decay_terms_{most}", counted, [0, 1])
        terms = emitter.op("Mul", [column, decay_terms], "log_decay_terms")
        axis = emitter.constant("int64.axis_2", np.array(2, np.int64))
        total = emitter.op("CumSum", [terms, axis], "log_decay_between")
        causal = np.where(np.tri(most, most + 1, k=1) > 0, np.float32(0.0), np.float32(ABOVE_DIAGONAL))
        ceiling = rows.table(emitter, f"causal_ceiling_{most}", causal, [0, 1])
        decay = emitter.op("Exp", [emitter.op("Min", [total, ceiling], "log_decay_bounded")], "decay")
        growth = emitter.slice_axis(decay, 3, 0, 1, "decay_from_start")
        return emitter.slice_axis(decay, 3, 1, None, "decay_matrix"), growth
