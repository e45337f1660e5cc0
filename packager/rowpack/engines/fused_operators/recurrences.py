"""Mixers, norms and gates in float64, row by row, straight from their definitions: what a fused operator must equal."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def delta_rule(q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """Return out ``[S, value_heads · value_dim]`` and the state after the last row.

    S ← e^g S; u = β (v − Sᵀk); S ← S + k uᵀ; o = Sᵀ q (Yang et al., arXiv:2412.06464, eq. 10); value head h uses key
    head h // (value_heads / key_heads).
    """
    q, k, v, decay, beta, memory = (x.astype(np.float64) for x in (q, k, v, decay, beta, state))
    heads, key_dim, value_dim = memory.shape
    group = heads * key_dim // q.shape[1]
    out = np.empty((q.shape[0], heads, value_dim))
    for row in range(q.shape[0]):
        query = np.repeat(q[row].reshape(-1, key_dim), group, axis=0)
        key = np.repeat(k[row].reshape(-1, key_dim), group, axis=0)
        memory = memory * np.exp(decay[row])[:, None, None]
        recalled = np.einsum("hkv,hk->hv", memory, key)
        update = beta[row][:, None] * (v[row].reshape(heads, value_dim) - recalled)
        memory = memory + key[:, :, None] * update[:, None, :]
        out[row] = np.einsum("hkv,hk->hv", memory, query)
    return out.reshape(q.shape[0], heads * value_dim), memory


def causal_conv(x: Array, state: Array, weight: Array) -> tuple[Array, Array]:
    """Return silu(Σ_j weight[:, j] · x_{t−K+1+j}) ``[S, channels]`` and the last K columns ``[channels, K]``."""
    columns = state.shape[1]
    window = np.concatenate([state, x.T], axis=1).astype(np.float64)
    taps = weight.astype(np.float64)
    sums = np.stack(
        [(window[:, row + 1 : row + 1 + columns] * taps).sum(axis=1) for row in range(x.shape[0])],
    )
    return sums * _sigmoid(sums), window[:, -columns:]


def residual_norm(x: Array, skip: Array, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """Return x / √(mean(x², last axis) + ε) · weight of the sum x + skip, and the sum, ``[S, width]``."""
    total = x.astype(np.float64) + skip
    return rms_norm(total, weight, epsilon)[0], total


def rms_norm(x: Array, weight: Array, epsilon: float) -> tuple[Array]:
    """Return x / √(mean(x², last axis) + ε) · weight (Zhang and Sennrich, arXiv:1910.07467)."""
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + epsilon) * weight,)


def unit_norm(x: Array, epsilon: float) -> tuple[Array]:
    """Return x / √(Σ x² + ε) over the last axis."""
    wide = x.astype(np.float64)
    return (wide / np.sqrt((wide * wide).sum(axis=-1, keepdims=True) + epsilon),)


def silu(x: Array) -> tuple[Array]:
    """Return x · sigmoid(x)."""
    wide = x.astype(np.float64)
    return (wide * _sigmoid(wide),)


def softplus(x: Array) -> tuple[Array]:
    """Return log(1 + e^x)."""
    wide = x.astype(np.float64)
    return (np.maximum(wide, 0.0) + np.log1p(np.exp(-np.abs(wide))),)


def decay_gates(b: Array, a: Array, dt_bias: Array, decay_rate: Array) -> tuple[Array, Array]:
    """Return beta = sigmoid(b) and the log decay decay_rate · softplus(a + dt_bias), ``[S, heads]``."""
    (total,) = softplus(a.astype(np.float64) + dt_bias)
    return _sigmoid(b.astype(np.float64)), decay_rate * total


def rotary(x: Array, cosine: Array, sine: Array) -> tuple[Array]:
    """Return heads ``[S, heads, dim]`` whose first values are rotated, half against half; the others are kept."""
    half = cosine.shape[-1]
    wide = x.astype(np.float64)
    low, high, kept = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return (np.concatenate([low * cosine - high * sine, high * cosine + low * sine, kept], axis=-1),)


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^−x), written with tanh, which does not overflow."""
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result


def cached_attention(
    q: Array, k: Array, v: Array, cache_k: Array, cache_v: Array, mask: Array, head_dim: int
) -> tuple[Array]:
    """Return softmax attention ``[S, heads · head_dim]`` of new rows over cached rows and themselves."""
    queries = q.astype(np.float64).reshape(q.shape[0], -1, head_dim)
    keys = np.concatenate([cache_k, k]).astype(np.float64).reshape(-1, k.shape[1] // head_dim, head_dim)
    values = np.concatenate([cache_v, v]).astype(np.float64).reshape(keys.shape)
    out = np.empty(queries.shape)
    group = queries.shape[1] // keys.shape[1]
    for head in range(queries.shape[1]):
        scores = queries[:, head] @ keys[:, head // group].T * head_dim**-0.5 + mask
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ values[:, head // group]
    return (out.reshape(q.shape[0], -1),)
