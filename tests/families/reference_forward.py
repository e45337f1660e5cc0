"""Whole models in float64 NumPy, written from their definitions and fed with the checkpoint's own tensors.

Nothing of the packager is used: names, splits, norms, rotary and rescaling are spelt out here a second time.
Sources: transformers 5.17 ``modeling_qwen3_5.py`` and ``modeling_rwkv.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from oracles import Array, WkvState, cached_attention, causal_conv, causal_mask, delta_rule, token_shift, wkv

Read = Callable[[str], Array]


def forward(config: Mapping[str, Any], read: Read, ids: Sequence[int]) -> Array:
    """Return the logits of every row ``[S, vocab]`` in float64; ``read`` returns a checkpoint tensor."""

    def tensor(name: str) -> Array:
        return read(name).astype(np.float64)

    if config["model_type"] == "rwkv":
        return _rwkv(config, tensor, ids)
    text = config.get("text_config", config)
    prefix = "model.language_model." if "text_config" in config else "model."
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return _qwen3_5(text, tensor, prefix, tied, ids)


def _sigmoid(x: Array) -> Array:
    result: Array = np.exp(-np.logaddexp(0, -x))
    return result


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _rms(x: Array, weight: Array, epsilon: float) -> Array:
    result: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight
    return result


def _qwen3_5(config: Mapping[str, Any], tensor: Read, prefix: str, tied: bool, ids: Sequence[int]) -> Array:
    epsilon = config["rms_norm_eps"]
    embedding = tensor(f"{prefix}embed_tokens.weight")
    x = embedding[np.array(ids)]
    for index in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{index}"
        kinds = config.get("layer_types")
        full = kinds[index] == "full_attention" if kinds else (index + 1) % config["full_attention_interval"] == 0
        normed = _rms(x, 1 + tensor(f"{layer}.input_layernorm.weight"), epsilon)
        mixer = _attention if full else _delta_net
        x = x + mixer(config, tensor, f"{layer}.{'self_attn' if full else 'linear_attn'}", normed)
        normed = _rms(x, 1 + tensor(f"{layer}.post_attention_layernorm.weight"), epsilon)
        gate = _silu(normed @ tensor(f"{layer}.mlp.gate_proj.weight").T)
        up = normed @ tensor(f"{layer}.mlp.up_proj.weight").T
        x = x + (gate * up) @ tensor(f"{layer}.mlp.down_proj.weight").T
    x = _rms(x, 1 + tensor(f"{prefix}norm.weight"), epsilon)
    head = embedding if tied else tensor("lm_head.weight")
    return x @ head.T


def _delta_net(config: Mapping[str, Any], tensor: Read, name: str, x: Array) -> Array:
    key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    width = key_heads * key_dim
    kernel = tensor(f"{name}.conv1d.weight")[:, 0]
    mixed = x @ tensor(f"{name}.in_proj_qkv.weight").T
    mixed, _ = causal_conv(mixed, np.zeros(kernel.shape), kernel)
    q, k, v = np.split(mixed, [width, 2 * width], axis=1)

    def unit(rows: Array) -> Array:
        by_head = rows.reshape(len(x), key_heads, key_dim)
        length = np.sqrt((by_head**2).sum(-1, keepdims=True) + 1e-6)
        return (by_head / length).reshape(rows.shape)

    beta = _sigmoid(x @ tensor(f"{name}.in_proj_b.weight").T)
    step = np.logaddexp(0, x @ tensor(f"{name}.in_proj_a.weight").T + tensor(f"{name}.dt_bias"))
    decay = -np.exp(tensor(f"{name}.A_log")) * step
    state = np.zeros((heads, key_dim, value_dim))
    out, _ = delta_rule(unit(q) * key_dim**-0.5, unit(k), v, decay, beta, state)
    z = x @ tensor(f"{name}.in_proj_z.weight").T
    normed = _rms(out.reshape(-1, heads, value_dim), tensor(f"{name}.norm.weight"), config["rms_norm_eps"])
    return (normed.reshape(out.shape) * _silu(z)) @ tensor(f"{name}.out_proj.weight").T


def _attention(config: Mapping[str, Any], tensor: Read, name: str, x: Array) -> Array:
    rows, dim = len(x), config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rope = config["rope_parameters"]
    rotary_dim = int(dim * rope["partial_rotary_factor"])
    angles = np.arange(rows)[:, None] / rope["rope_theta"] ** (np.arange(0, rotary_dim, 2) / rotary_dim)

    def rotated(by_head: Array) -> Array:
        low, high = np.split(by_head[..., :rotary_dim], 2, axis=-1)
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turned = [low * cosine - high * sine, high * cosine + low * sine]
        return np.concatenate([*turned, by_head[..., rotary_dim:]], axis=-1)

    query_gate = (x @ tensor(f"{name}.q_proj.weight").T).reshape(rows, heads, 2, dim)
    query, gate = query_gate[:, :, 0], query_gate[:, :, 1]
    key = (x @ tensor(f"{name}.k_proj.weight").T).reshape(rows, kv_heads, dim)
    value = x @ tensor(f"{name}.v_proj.weight").T
    query = rotated(_rms(query, 1 + tensor(f"{name}.q_norm.weight"), config["rms_norm_eps"]))
    key = rotated(_rms(key, 1 + tensor(f"{name}.k_norm.weight"), config["rms_norm_eps"]))
    empty = np.zeros((0, kv_heads * dim))
    out = cached_attention(
        query.reshape(rows, -1), key.reshape(rows, -1), value, empty, empty, causal_mask(rows, 0), dim
    )
    return (out * _sigmoid(gate.reshape(rows, -1))) @ tensor(f"{name}.o_proj.weight").T


def _rwkv(config: Mapping[str, Any], tensor: Read, ids: Sequence[int]) -> Array:
    hidden, every = config["hidden_size"], config["rescale_every"]

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        result: Array = unit * tensor(f"{name}.weight") + tensor(f"{name}.bias")
        return result

    x = norm(tensor("rwkv.embeddings.weight")[np.array(ids)], "rwkv.blocks.0.pre_ln")
    for block in range(config["num_hidden_layers"]):
        name = f"rwkv.blocks.{block}"
        # In evaluation the reference divides the two output projections in place, and halves the residual.
        divisor = 2.0 ** (block // every) if every else 1.0

        def mixed(rows: Array, layer: str, word: str) -> Array:
            before, _ = token_shift(rows, np.zeros((1, hidden)))
            mix = tensor(f"{layer}.time_mix_{word}").reshape(1, hidden)
            return (rows * mix + before * (1 - mix)) @ tensor(f"{layer}.{word}.weight").T

        attention = f"{name}.attention"
        normed = norm(x, f"{name}.ln1")
        zeros = np.zeros((1, hidden))
        out, _ = wkv(
            mixed(normed, attention, "key"),
            mixed(normed, attention, "value"),
            -np.exp(tensor(f"{attention}.time_decay")),
            tensor(f"{attention}.time_first"),
            WkvState(zeros, zeros, np.full((1, hidden), -1e38)),
        )
        gated = _sigmoid(mixed(normed, attention, "receptance")) * out
        x = x + gated @ tensor(f"{attention}.output.weight").T / divisor

        feed_forward = f"{name}.feed_forward"
        normed = norm(x, f"{name}.ln2")
        squared = np.maximum(mixed(normed, feed_forward, "key"), 0) ** 2
        value = squared @ tensor(f"{feed_forward}.value.weight").T / divisor
        x = x + _sigmoid(mixed(normed, feed_forward, "receptance")) * value
        if every and (block + 1) % every == 0:
            x = x / 2
    x = norm(x, "rwkv.ln_out")
    head = "rwkv.embeddings.weight" if config.get("tie_word_embeddings") else "head.weight"
    return x @ tensor(head).T
