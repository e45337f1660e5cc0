"""Lowering of ``CachedAttention`` to one new row over the filled cache rows.

The cache is ``[P, kv_heads · head_dim]``, one row a position. Bringing heads to the front would copy all of it each
step; instead each query is placed into its key head's columns of a block-diagonal matrix ``[kv, heads]``, and the
cache multiplies that as it lies. The columns of other heads multiply zeros: kv_heads times the arithmetic of a
product that only waits for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.float32_island import widened


def cached_attention_row(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit out ``[1, heads · head_dim]`` float32."""
    q, k, v, cache_k, cache_v, mask = inputs
    dim = int(attributes["head_dim"])
    kv_width, query_width = int(static_shape(k)[1]), int(static_shape(q)[1])
    kv_heads, heads = kv_width // dim, query_width // dim
    k, v, cache_k, cache_v = (
        widened(emitter, tensor, name)
        for tensor, name in ((k, "k"), (v, "v"), (cache_k, "cache_k"), (cache_v, "cache_v"))
    )

    own = np.kron(np.eye(kv_heads, dtype=np.float32), np.ones((1, heads // kv_heads), np.float32))
    scale = np.float32(dim**-0.5)
    own_scaled = emitter.constant(f"own_heads_{kv_heads}_{heads}_{dim}", (own * scale).reshape(kv_heads, 1, heads))
    query_columns = emitter.transpose(emitter.reshape(q, [1, heads, dim], "query_heads"), [0, 2, 1], "query_columns")
    placed = emitter.op("Mul", [query_columns, own_scaled], "query_placed")
    query = emitter.reshape(placed, [kv_width, heads], "query")

    scores = emitter.op(
        "Concat",
        [
            emitter.op("MatMul", [cache_k, query], "scores_of_cache"),
            emitter.op("MatMul", [k, query], "scores_of_row"),
        ],
        "scores",
        axis=0,
    )
    masked = emitter.op("Add", [emitter.transpose(scores, [1, 0], "scores_by_head"), mask], "masked")
    weights = emitter.op("Softmax", [masked], "weights", axis=-1)
    past = emitter.op("MatMul", [emitter.slice_axis(weights, 1, 0, -1, "weights_of_cache"), cache_v], "attended_cache")
    new = emitter.op("Mul", [emitter.slice_axis(weights, 1, -1, None, "weights_of_row"), v], "attended_row")
    attended = emitter.op("Add", [past, new], "attended")
    by_kv_head = emitter.reshape(attended, [heads, kv_heads, dim], "attended_by_kv_head")
    chosen = emitter.constant(
        f"own_kv_head_{kv_heads}_{heads}", np.ascontiguousarray(own.T).reshape(heads, kv_heads, 1)
    )
    kept = emitter.op("Mul", [by_kv_head, chosen], "attended_own")
    out = emitter.op("ReduceSum", [kept, emitter.ints(1)], "out_heads", keepdims=0)
    return [emitter.reshape(out, [1, query_width], "out")]
