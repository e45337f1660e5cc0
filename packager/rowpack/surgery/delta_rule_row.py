"""Lowering of ``GatedDeltaRule`` to one row.

    u = β (v − e^g Sᵀk);   S' = e^g S + k uᵀ;   o = S'ᵀ q = e^g Sᵀq + (q·k) u

Key and query read the state in one product, so the state passes through memory as few times as plain operators allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.delta_rule_geometry import DeltaRuleGeometry


def delta_rule_row(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the recurrence of one row; heads are grouped as ``[key_heads, value heads a key head, …]``."""
    q, k, v, decay, beta, state = inputs
    shape = DeltaRuleGeometry.of(q, state)
    heads, group, key, value = shape.key_heads, shape.group, shape.key_dim, shape.value_dim

    memory = emitter.reshape(state, [heads, group, key, value], "state_grouped")
    key_row = emitter.reshape(k, [heads, 1, 1, key], "key_row")
    key_column = emitter.reshape(k, [heads, 1, key, 1], "key_column")
    query_row = emitter.reshape(q, [heads, 1, 1, key], "query_row")
    reading = emitter.op("Concat", [key_row, query_row], "key_and_query", axis=2)
    read = emitter.op("MatMul", [reading, memory], "read_both")
    factor = emitter.reshape(emitter.op("Exp", [decay], "decay_factor"), [heads, group, 1, 1], "factor")
    decayed_read = emitter.op("Mul", [read, factor], "decayed_read")
    recalled, queried = emitter.split(decayed_read, [1, 1], 2, "decayed", ["recalled", "queried"])

    value_row = emitter.reshape(v, [heads, group, 1, value], "value_row")
    error = emitter.op("Sub", [value_row, recalled], "error")
    strength = emitter.reshape(beta, [heads, group, 1, 1], "strength")
    update = emitter.op("Mul", [strength, error], "update")

    similarity = emitter.op("MatMul", [query_row, key_column], "query_dot_key")
    written_read = emitter.op("Mul", [similarity, update], "written_read")
    out = emitter.op("Add", [queried, written_read], "out_grouped")
    # The sum is taken in the state's own shape: a reshape as the model's output would copy the whole state.
    by_head = [heads * group, key, value]
    decayed = emitter.reshape(emitter.op("Mul", [memory, factor], "decayed_grouped"), by_head, "decayed_state")
    written = emitter.reshape(emitter.op("Mul", [key_column, update], "written_grouped"), by_head, "written_state")
    present = emitter.op("Add", [decayed, written], "present")
    return [emitter.reshape(out, [1, heads * group * value], "out"), present]
