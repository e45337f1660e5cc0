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
from rowpack.surgery.delta_rule_geometry import DeltaRuleGeometry
from rowpack.surgery.row_padding import RowPadding, padded_rows
from rowpack.surgery.unit_lower_solve import solve_unit_lower

ABOVE_DIAGONAL = -1e30
"""Log decay of what lies in a row's future: exp gives an exact zero."""


class DeltaRuleChunk:
    """The lowering for chunks of at most ``prefill_rows`` rows."""

    pads_rows = True

    def __init__(self, prefill_rows: int) -> None:
        self._rows = padded_rows(prefill_rows)

    def __call__(self, emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        """Emit the subgraph of one call."""
        q, k, v, decay, beta, state = inputs
        shape = DeltaRuleGeometry.of(q, state)
        heads, group, key, value = shape.key_heads, shape.group, shape.key_dim, shape.value_dim
        rows = self._rows
        padding = RowPadding.of(emitter, q, rows)

        memory = emitter.reshape(state, [heads, group, key, value], "state_grouped")
        queries = self._heads(emitter, padding, q, [heads, 1, key], "query")
        query_rows = emitter.transpose(queries, [1, 2, 0, 3], "query_rows")
        keys = self._heads(emitter, padding, k, [heads, 1, key], "key")
        key_rows = emitter.transpose(keys, [1, 2, 0, 3], "key_rows")
        key_columns = emitter.transpose(keys, [1, 2, 3, 0], "key_columns")
        by_row = self._heads(emitter, padding, v, [heads, group, value], "value")
        values = emitter.transpose(by_row, [1, 2, 0, 3], "value_rows")
        strength = self._column(emitter, padding, beta, heads, group, "strength")

        decay_matrix, growth = self._decays(emitter, self._column(emitter, padding, decay, heads, group, "log_decay"))
        # Keys and queries read the same things: one product each for both.
        reading = emitter.op("Concat", [key_rows, query_rows], "key_and_query_rows", axis=2)
        halves = ["of_key", "of_query"]
        products = emitter.op("MatMul", [reading, key_columns], "products")
        key_key, query_key = emitter.split(products, [rows, rows], 2, "products_split", halves)
        reads = emitter.op("MatMul", [reading, memory], "state_reads")
        key_read, query_read = emitter.split(reads, [rows, rows], 2, "state_reads_split", halves)

        strong = emitter.op("Mul", [emitter.op("Mul", [decay_matrix, key_key], "decayed_keys"), strength], "a")
        recalled = emitter.op("Mul", [growth, key_read], "recalled")
        error = emitter.op("Sub", [values, recalled], "error")
        right = emitter.op("Mul", [strength, error], "right_side")
        update = solve_unit_lower(emitter.scope("solve"), strong, right, rows, heads, group, value)

        attention = emitter.op("Mul", [decay_matrix, query_key], "decayed_attention")
        inside = emitter.op("MatMul", [attention, update], "read_of_chunk")
        before = emitter.op("Mul", [growth, query_read], "read_of_state")
        out = emitter.op("Add", [before, inside], "out_grouped")
        out_rows = emitter.transpose(out, [2, 0, 1, 3], "out_by_row")
        out_flat = emitter.reshape(out_rows, [rows, heads * group * value], "out_padded")

        to_state = emitter.slice_axis(decay_matrix, 2, rows - 1, rows, "decay_to_state")
        keys_to_state = emitter.op("Mul", [key_columns, to_state], "keys_to_state")
        kept = emitter.slice_axis(growth, 2, rows - 1, rows, "decay_of_state")
        # The sum is taken in the state's own shape: a reshape as the model's output would copy the whole state.
        by_head = [heads * group, key, value]
        written_grouped = emitter.op("MatMul", [keys_to_state, update], "written_grouped")
        written = emitter.reshape(written_grouped, by_head, "written_state")
        decayed = emitter.reshape(emitter.op("Mul", [memory, kept], "decayed_grouped"), by_head, "decayed_state")
        present = emitter.op("Add", [decayed, written], "present")
        return [padding.cut(emitter, out_flat, "out"), present]

    def _heads(self, emitter: Emitter, padding: RowPadding, x: Tensor, shape: list[int], name: str) -> Tensor:
        """Emit ``[S, heads · group · dim]`` → ``[rows, heads, group, dim]``, padded."""
        return emitter.reshape(padding.pad(emitter, x, name), [self._rows, *shape], f"{name}_heads")

    def _column(self, emitter: Emitter, padding: RowPadding, x: Tensor, heads: int, group: int, name: str) -> Tensor:
        """Emit ``[S, value_heads]`` → ``[heads, group, rows, 1]``, padded."""
        padded = padding.pad(emitter, x, name)
        by_head = emitter.transpose(padded, [1, 0], f"{name}_by_head")
        return emitter.reshape(by_head, [heads, group, self._rows, 1], f"{name}_column")

    def _decays(self, emitter: Emitter, column: Tensor) -> tuple[Tensor, Tensor]:
        """Emit exp(γ_i − γ_j) for j ≤ i, zero elsewhere, and exp(γ_i) as a column, from the log decays in one."""
        rows = self._rows
        # Column 0 sums from the incoming state on, column 1 + j from row j on: g_k counts where k > j.
        counted = np.concatenate([np.ones((rows, 1)), np.tri(rows, k=-1)], axis=1).astype(np.float32)
        terms = emitter.op("Mul", [column, emitter.constant(f"decay_terms_{rows}", counted)], "log_decay_terms")
        axis = emitter.constant("int64.axis_2", np.array(2, np.int64))
        total = emitter.op("CumSum", [terms, axis], "log_decay_between")
        ceiling = np.where(np.tri(rows, rows + 1, k=1) > 0, np.float32(0.0), np.float32(ABOVE_DIAGONAL))
        bounded = emitter.op("Min", [total, emitter.constant(f"causal_ceiling_{rows}", ceiling)], "log_decay_bounded")
        growth, matrix = emitter.split(
            emitter.op("Exp", [bounded], "decay"), [1, rows], 3, "decay_split", ["from_start", "matrix"]
        )
        return matrix, growth
