"""The mixers row by row in NumPy, straight from their definitions.

Everything is computed in the ``dtype`` asked for: float64 is the oracle, float32 shows what the recurrence itself
loses in the engines' own precision, whatever way it is evaluated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


def delta_rule(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array, dtype: Any = np.float64
) -> tuple[Array, Array]:
    """Return out ``[S, value_heads · value_dim]`` and the state after the last row.

    S ← e^g S; u = β (v − Sᵀk); S ← S + k uᵀ; o = Sᵀ q (Yang et al., arXiv:2412.06464, eq. 10). q and k are
    ``[S, key_heads · key_dim]``; value head h uses key head h // (value_heads / key_heads).
    """
    q, k, v, decay, beta, memory = (np.asarray(x).astype(dtype) for x in (q, k, v, decay, beta, state))
    heads, key_dim, value_dim = memory.shape
    rows = q.shape[0]
    group = heads // (q.shape[1] // key_dim)
    queries = np.repeat(q.reshape(rows, -1, key_dim), group, axis=1)
    keys = np.repeat(k.reshape(rows, -1, key_dim), group, axis=1)
    values = v.reshape(rows, heads, value_dim)
    out = np.empty((rows, heads, value_dim), dtype)
    for t in range(rows):
        memory = memory * np.exp(decay[t])[:, None, None]
        recalled = np.einsum("hkv,hk->hv", memory, keys[t])
        update = beta[t][:, None] * (values[t] - recalled)
        memory = memory + keys[t][:, :, None] * update[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", memory, queries[t])
    return out.reshape(rows, heads * value_dim), memory


class WkvState(NamedTuple):
    """Sums num · e^max and den · e^max, each ``[1, channels]``; the scale ``max`` is free."""

    num: Array
    den: Array
    max: Array

    @property
    def mean(self) -> Array:
        """The weighted mean of the values seen: independent of the scale."""
        return self.num / self.den

    @property
    def log_weight(self) -> Array:
        """The logarithm of the sum of weights: independent of the scale."""
        return self.max + np.log(self.den)


def wkv(
    k: Array, v: Array, decay: Array, bonus: Array, state: WkvState, dtype: Any = np.float64
) -> tuple[Array, WkvState]:
    """Return out ``[S, channels]`` and the state after the last row (arXiv:2305.13048, appendix D).

    ``den = 0`` means that nothing was seen yet, whatever ``max`` says.
    """
    k, v, decay, bonus, num, den, largest = (np.asarray(x).astype(dtype) for x in (k, v, decay, bonus, *state))
    num, den = num[0], den[0]
    largest = np.where(den > 0, largest[0], dtype(-1e38))
    out = np.empty_like(v)
    for t in range(k.shape[0]):
        with_bonus = bonus + k[t]
        top = np.maximum(largest, with_bonus)
        past, row = np.exp(largest - top), np.exp(with_bonus - top)
        out[t] = (past * num + row * v[t]) / (past * den + row)
        top = np.maximum(largest + decay, k[t])
        past, row = np.exp(largest + decay - top), np.exp(k[t] - top)
        num, den, largest = past * num + row * v[t], past * den + row, top
    return out, WkvState(num[None], den[None], largest[None])


def causal_conv(x: Array, state: Array, weight: Array, dtype: Any = np.float64) -> tuple[Array, Array]:
    """Return silu(Σ_j w[:, j] x_{t−K+1+j}) ``[S, channels]`` and the last K columns of the input."""
    x, window, weight = (np.asarray(value).astype(dtype) for value in (x, state, weight))
    out = np.empty_like(x)
    for t in range(x.shape[0]):
        window = np.concatenate([window[:, 1:], x[t][:, None]], axis=1)
        total = (window * weight).sum(axis=1)
        out[t] = total * np.exp(-np.logaddexp(dtype(0), -total))
    return out, window


def token_shift(x: Array, previous: Array) -> tuple[Array, Array]:
    """Return each row's predecessor ``[S, hidden]`` and the last row ``[1, hidden]``."""
    return np.concatenate([previous, x[:-1]]), x[-1:]


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    cache_k: Array,
    cache_v: Array,
    mask: Array,
    head_dim: int,
    dtype: Any = np.float64,
) -> Array:
    """Return softmax(q·kᵀ / √head_dim + mask) v ``[S, heads · head_dim]`` over cached and new rows."""
    q, k, v, cache_k, cache_v, mask = (np.asarray(x).astype(dtype) for x in (q, k, v, cache_k, cache_v, mask))
    rows, heads = q.shape[0], q.shape[1] // head_dim
    keys = np.concatenate([cache_k, k]).reshape(-1, k.shape[1] // head_dim, head_dim)
    values = np.concatenate([cache_v, v]).reshape(keys.shape)
    out = np.empty((rows, heads, head_dim), dtype)
    for head in range(heads):
        kv_head = head // (heads // keys.shape[1])
        query = q.reshape(rows, heads, head_dim)[:, head]
        scores = query @ keys[:, kv_head].T / dtype(head_dim) ** 0.5 + mask
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values[:, kv_head]
    return out.reshape(rows, heads * head_dim)


def causal_mask(rows: int, cached_rows: int) -> Array:
    """Return the additive float32 mask ``[rows, cached + rows]``: row t sees all cached and new rows up to t."""
    mask = np.zeros((rows, cached_rows + rows), np.float32)
    mask[:, cached_rows:] = np.triu(np.full((rows, rows), -1e4, np.float32), 1)
    return mask


def relative_error(found: Array, expected: Array) -> float:
    """Return the largest deviation over the largest expected magnitude; NaN and infinity count as infinite."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    if not np.isfinite(found).all():
        return float("inf")
    if expected.size == 0:
        return 0.0
    scale = np.abs(expected).max()
    return float(np.abs(found - expected).max() / scale) if scale else float(np.abs(found).max())
