"""Fused lowering of ``CachedAttention``: ONNX Runtime's ``com.microsoft.GroupQueryAttention``.

The operator wants caches as ``[batch, kv_heads, rows, head_dim]`` and ours are one row a position, so both are turned
in every call; its own present caches are not used. The mask counts as bias beside the operator's causal one, which
says the same: the new rows are the last ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.float32_island import widened


def group_query_attention(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit out ``[S, heads · head_dim]`` float32; scores, softmax and sums are float32 as in the plain form."""
    q, k, v, cache_k, cache_v, mask = inputs
    dim = int(attributes["head_dim"])
    query_width, kv_width = int(static_shape(q)[1]), int(static_shape(k)[1])
    kv_heads = kv_width // dim

    def new_rows(tensor: Tensor, width: int, name: str) -> Tensor:
        return emitter.reshape(widened(emitter, tensor, name), [1, -1, width], f"{name}_batch")

    def heads_first(cache: Tensor, name: str) -> Tensor:
        by_head = emitter.reshape(widened(emitter, cache, name), [1, -1, kv_heads, dim], f"{name}_heads")
        return emitter.transpose(by_head, [0, 2, 1, 3], f"{name}_by_head")

    columns = emitter.op("Shape", [mask], "mask_columns", start=1, end=2)
    total = emitter.cast(columns, "int32", "total_rows")
    before_last = emitter.op("Sub", [total, emitter.constant("int32.1", np.array([1], np.int32))], "rows_before_last")
    longest = emitter.op("Squeeze", [total], "longest_total")
    bias = emitter.op("Unsqueeze", [mask, emitter.ints(0, 1)], "bias")
    no_angles = [gs.Variable.empty() for _ in ("cosine", "sine", "positions")]
    out, _, _ = emitter.multi_op(
        "GroupQueryAttention",
        [
            emitter.reshape(q, [1, -1, query_width], "query_batch"),
            new_rows(k, kv_width, "key"),
            new_rows(v, kv_width, "value"),
            heads_first(cache_k, "cache_k"),
            heads_first(cache_v, "cache_v"),
            before_last,
            longest,
            *no_angles,
            bias,
        ],
        "group_query_attention",
        [("out", None, None), ("unused_keys", None, None), ("unused_values", None, None)],
        domain=CONTRIBUTED_DOMAIN,
        num_heads=query_width // dim,
        kv_num_heads=kv_heads,
    )
    return [emitter.reshape(out, [-1, query_width], "out")]
