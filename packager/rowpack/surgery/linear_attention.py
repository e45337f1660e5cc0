"""Fused lowering of ``GatedDeltaRule``: ONNX Runtime's ``com.microsoft.LinearAttention``.

    S_t = exp(g_t) S_{t−1} + β_t k_t ⊗ (v_t − exp(g_t) S_{t−1}ᵀ k_t);   o_t = scale · S_tᵀ q_t

which is the definition, row by row, with u = β (v − Sᵀk) of the decayed state (update rule ``gated_delta``). It takes
any number of rows, needs no padding, and its state is ``[batch, value_heads, key_dim, value_dim]``: ours with a batch
of one. Keys are wanted a value head, so a group's shared key is repeated; queries are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.delta_rule_geometry import DeltaRuleGeometry
from rowpack.surgery.pattern import producer


def linear_attention(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit one node and the reshapes around it; the same for one row and for a chunk."""
    q, k, v, decay, beta, state = inputs
    shape = DeltaRuleGeometry.of(q, state)
    queries, scale = _scaled(q)
    value_heads = shape.key_heads * shape.group

    def with_batch(tensor: Tensor, width: int, name: str) -> Tensor:
        return emitter.reshape(tensor, [1, -1, width], f"{name}_batch")

    keys = k
    if shape.group > 1:
        by_head = emitter.reshape(k, [-1, shape.key_heads, 1, shape.key_dim], "key_heads")
        keys = emitter.op("Expand", [by_head, emitter.ints(1, 1, shape.group, 1)], "key_repeated")
    out, present = emitter.multi_op(
        "LinearAttention",
        [
            with_batch(queries, shape.key_heads * shape.key_dim, "query"),
            with_batch(keys, value_heads * shape.key_dim, "key"),
            with_batch(v, value_heads * shape.value_dim, "value"),
            emitter.reshape(state, [1, value_heads, shape.key_dim, shape.value_dim], "state_batch"),
            with_batch(decay, value_heads, "decay"),
            with_batch(beta, value_heads, "beta"),
        ],
        "linear_attention",
        [("out", None, None), ("present", None, None)],
        domain=CONTRIBUTED_DOMAIN,
        q_num_heads=shape.key_heads,
        kv_num_heads=value_heads,
        update_rule="gated_delta",
        scale=scale,
    )
    return [
        emitter.reshape(out, [-1, value_heads * shape.value_dim], "out"),
        emitter.reshape(present, [value_heads, shape.key_dim, shape.value_dim], "present"),
    ]


def _scaled(q: Tensor) -> tuple[Tensor, float]:
    """Return queries and their scale: what a Mul by one number multiplies, which the operator does by itself."""
    product = producer(q, "Mul")
    factor = None if product is None else product.inputs[1]
    if product is None or not isinstance(factor, gs.Constant) or any(extent != 1 for extent in factor.shape):
        return q, 1.0
    return product.inputs[0], float(factor.values.item())
