"""Lowering of ``CachedAttention`` to a chunk of rows: batched products over key heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.float32_island import widened


def cached_attention_chunk(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit out ``[S, heads · head_dim]`` float32 over cache and new rows together."""
    q, k, v, cache_k, cache_v, mask = inputs
    dim = int(attributes["head_dim"])
    kv_heads = int(static_shape(k)[1]) // dim
    group = int(static_shape(q)[1]) // dim // kv_heads

    def heads_first(cache: Tensor, new: Tensor, permutation: list[int], name: str) -> Tensor:
        joined = widened(emitter, emitter.op("Concat", [cache, new], f"{name}s", axis=0), f"{name}s")
        by_head = emitter.reshape(joined, [-1, kv_heads, 1, dim], f"{name}_heads")
        return emitter.transpose(by_head, permutation, f"{name}_by_head")

    key_columns = heads_first(cache_k, k, [1, 2, 3, 0], "key")
    value_rows = heads_first(cache_v, v, [1, 2, 0, 3], "value")
    scale = emitter.floats(f"attention_scale_{dim}", dim**-0.5, scalar=True)
    scaled = emitter.op("Mul", [q, scale], "query_scaled")
    query_heads = emitter.reshape(scaled, [-1, kv_heads, group, dim], "query_heads")
    query_rows = emitter.transpose(query_heads, [1, 2, 0, 3], "query_rows")
    scores = emitter.op("MatMul", [query_rows, key_columns], "scores")
    weights = emitter.op("Softmax", [emitter.op("Add", [scores, mask], "masked")], "weights", axis=-1)
    attended = emitter.op("MatMul", [weights, value_rows], "attended")
    by_row = emitter.transpose(attended, [2, 0, 1, 3], "attended_by_row")
    return [emitter.reshape(by_row, [-1, kv_heads * group * dim], "out")]
