"""Weight and state tables of Qwen3.5: which checkpoint rows make each bundle tensor, and what passes on.

Parallel projections of one input are stored as one tensor (queries, keys, values and z; gate and up), so that a
launch has fewer, larger products. The projections that make gates (b, a) stay apart and in float32: a decay is an
exponential of what they give, they must not be quantised, and they are a thousandth of the weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rowpack.families.declaration import StateSpec, WeightSource, WeightSpec
from rowpack.families.qwen3_5.config import CONV_COLUMNS, Qwen35Config
from rowpack.families.transforms import negative_exponential

HEAD_NAME = "lm_head.weight"
"""The output projection's tensor; a model whose head is tied to the embedding has none unless it is quantised."""


def plus_one(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return 1 + weight: the zero-centred norms multiply by the sum, formed in float32."""
    return values + np.float32(1.0)


def drop_middle_axis(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the depthwise kernel ``[channels, 1, columns]`` as ``[channels, columns]``."""
    return values.reshape(values.shape[0], values.shape[-1])


def layer_names(config: Qwen35Config) -> list[str]:
    """Return the scope of every layer in the graph and in the weight section."""
    return [f"layers.{index}" for index in range(len(config.layer_types))]


def weight_table(config: Qwen35Config, work: str) -> tuple[WeightSpec, ...]:
    """Return every tensor of the bundle; ``work`` is the element type of the projections."""
    embedding = _matrix("embed_tokens.weight", work, config, ["embed_tokens.weight"], [config.vocab_size])
    table = [replace(embedding, part="embedding")]
    for index, kind in enumerate(config.layer_types):
        scope, source = f"layers.{index}", f"layers.{index}"
        table.append(_norm(f"{scope}.input_norm.weight", config, f"{source}.input_layernorm.weight"))
        if kind == "linear_attention":
            table.extend(_deltanet(scope, source, config, work))
        else:
            table.extend(_attention(scope, source, config, work))
        table.append(_norm(f"{scope}.post_norm.weight", config, f"{source}.post_attention_layernorm.weight"))
        table.append(
            _matrix(
                f"{scope}.mlp.gate_up_proj.weight",
                work,
                config,
                [f"{source}.mlp.gate_proj.weight", f"{source}.mlp.up_proj.weight"],
                [config.intermediate_size, config.intermediate_size],
                quantizable=True,
            )
        )
        table.append(
            _matrix(
                f"{scope}.mlp.down_proj.weight",
                work,
                config,
                [f"{source}.mlp.down_proj.weight"],
                [config.hidden_size],
                columns=config.intermediate_size,
                quantizable=True,
            )
        )
    table.append(_norm("final_norm.weight", config, "norm.weight"))
    if not config.tied:
        shape = (config.vocab_size, config.hidden_size)
        table.append(WeightSpec(HEAD_NAME, work, shape, (WeightSource("lm_head.weight", shape),), part="head"))
    return tuple(table)


def state_table(config: Qwen35Config, work: str, max_cache_length: int) -> tuple[StateSpec, ...]:
    """Return every state and cache, names and shapes as the engines' inputs and outputs have them."""
    states: list[StateSpec] = []
    deltanet = attention = 0
    for layer, kind in enumerate(config.layer_types):
        if kind == "linear_attention":
            states.append(
                StateSpec(
                    "conv",
                    layer,
                    f"conv_state_{deltanet}",
                    f"present_conv_{deltanet}",
                    "float32",
                    (config.conv_dim, CONV_COLUMNS),
                    "channels_by_columns_oldest_first",
                )
            )
            states.append(
                StateSpec(
                    "recurrent",
                    layer,
                    f"ssm_state_{deltanet}",
                    f"present_ssm_{deltanet}",
                    "float32",
                    (config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim),
                    "value_head_by_key_by_value",
                )
            )
            deltanet += 1
        else:
            for role, letter in (("key", "k"), ("value", "v")):
                states.append(
                    StateSpec(
                        role,
                        layer,
                        f"cache_{letter}_{attention}",
                        f"present_{letter}_{attention}",
                        work,
                        (max_cache_length, config.kv_width),
                        "position_by_heads",
                        update="append_rows",
                    )
                )
            attention += 1
    return tuple(states)


def _deltanet(scope: str, source: str, config: Qwen35Config, work: str) -> list[WeightSpec]:
    mixer, stored = f"{scope}.deltanet", f"{source}.linear_attn"
    heads = (config.linear_num_value_heads,)
    conv_source = WeightSource(f"{config.tensor_prefix}{stored}.conv1d.weight", (config.conv_dim, 1, CONV_COLUMNS))
    return [
        _matrix(
            f"{mixer}.in_proj_qkvz.weight",
            work,
            config,
            [f"{stored}.in_proj_qkv.weight", f"{stored}.in_proj_z.weight"],
            [config.conv_dim, config.value_width],
            quantizable=True,
        ),
        _matrix(
            f"{mixer}.in_proj_ba.weight",
            "float32",
            config,
            [f"{stored}.in_proj_b.weight", f"{stored}.in_proj_a.weight"],
            [heads[0], heads[0]],
        ),
        WeightSpec(
            f"{mixer}.conv.weight",
            "float32",
            (config.conv_dim, CONV_COLUMNS),
            (conv_source,),
            drop_middle_axis,
        ),
        _vector(f"{mixer}.decay_rate", heads, config, f"{stored}.A_log", negative_exponential),
        _vector(f"{mixer}.dt_bias", heads, config, f"{stored}.dt_bias"),
        _vector(f"{mixer}.norm.weight", (config.linear_value_head_dim,), config, f"{stored}.norm.weight"),
        _matrix(
            f"{mixer}.out_proj.weight",
            work,
            config,
            [f"{stored}.out_proj.weight"],
            [config.hidden_size],
            columns=config.value_width,
            quantizable=True,
        ),
    ]


def _attention(scope: str, source: str, config: Qwen35Config, work: str) -> list[WeightSpec]:
    mixer, stored = f"{scope}.attention", f"{source}.self_attn"
    return [
        _matrix(
            f"{mixer}.qkv_proj.weight",
            work,
            config,
            [f"{stored}.q_proj.weight", f"{stored}.k_proj.weight", f"{stored}.v_proj.weight"],
            [2 * config.query_width, config.kv_width, config.kv_width],
            quantizable=True,
        ),
        _vector(f"{mixer}.q_norm.weight", (config.head_dim,), config, f"{stored}.q_norm.weight", plus_one),
        _vector(f"{mixer}.k_norm.weight", (config.head_dim,), config, f"{stored}.k_norm.weight", plus_one),
        _matrix(
            f"{mixer}.o_proj.weight",
            work,
            config,
            [f"{stored}.o_proj.weight"],
            [config.hidden_size],
            columns=config.query_width,
            quantizable=True,
        ),
    ]


def _matrix(
    name: str,
    dtype: str,
    config: Qwen35Config,
    sources: list[str],
    rows: list[int],
    columns: int | None = None,
    quantizable: bool = False,
) -> WeightSpec:
    """Declare a projection ``[out, in]`` made of the rows of one or more checkpoint matrices."""
    width = config.hidden_size if columns is None else columns
    parts = tuple(
        WeightSource(f"{config.tensor_prefix}{source}", (count, width))
        for source, count in zip(sources, rows, strict=True)
    )
    return WeightSpec(name, dtype, (sum(rows), width), parts, quantizable=quantizable)


def _vector(name: str, shape: tuple[int, ...], config: Qwen35Config, source: str, transform: Any = None) -> WeightSpec:
    """Declare a small float32 tensor; gates, decay and norms are float32 in every precision."""
    return WeightSpec(name, "float32", shape, (WeightSource(f"{config.tensor_prefix}{source}", shape),), transform)


def _norm(name: str, config: Qwen35Config, source: str) -> WeightSpec:
    """Declare a zero-centred RMS norm over the hidden size."""
    return _vector(name, (config.hidden_size,), config, source, plus_one)
