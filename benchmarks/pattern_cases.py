"""Norms, activations, gates and rotary positions of a published shape, each as a model: plain nodes and fused ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowering_cases import EPSILON, Array, LoweringCase, normal

from rowpack.families.normalisation import rms_norm, unit_norm
from rowpack.graph.activations import silu, softplus
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.rotary import rotate_heads
from rowpack.surgery.linear_attention_gate import linear_attention_gate
from rowpack.surgery.mixer_replacement import Lowering
from rowpack.surgery.residual_norm import skip_simplified_layer_normalization
from rowpack.surgery.root_mean_square_norm import rms_normalization, unit_rms_normalization
from rowpack.surgery.rotary_embedding import rotary_embedding
from rowpack.surgery.silu import quick_gelu
from rowpack.surgery.softplus import softplus as softplus_operator

Attributes = dict[str, Any]


def pattern_cases(config: Mapping[str, Any], row_counts: Sequence[int]) -> Iterator[LoweringCase]:
    """Yield every pattern of a Qwen3.5 text config at every row count, with the widths it has there."""
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    value, key = config["linear_value_head_dim"], config["linear_key_head_dim"]
    for rows in row_counts:
        x = {"x": normal(rows, hidden)}
        yield _case(
            "residual sum and norm",
            {**x, "skip": normal(hidden, rows).T.copy()},
            {"weight": normal(hidden)},
            {"normed": [hidden], "sum": [hidden]},
            {"plain": _residual_norm, "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization},
        )
        yield _case(
            "norm a head",
            {"x": normal(rows, heads, value)},
            {"weight": normal(value)},
            {"normed": [heads, value]},
            {"plain": _rms_norm, "RMSNormalization": rms_normalization},
        )
        key_heads = 2 * config["linear_num_key_heads"]
        yield _case(
            "unit norm a head",
            {"x": normal(rows, key_heads, key)},
            {},
            {"unit": [key_heads, key]},
            {"plain": _unit_norm, "RMSNormalization": unit_rms_normalization},
            width=key,
        )
        width = config["intermediate_size"]
        yield _case(
            "silu",
            {"x": normal(rows, width)},
            {},
            {"silu": [width]},
            {"plain": _silu, "QuickGelu": quick_gelu, "ScaledSiLU": _scaled_silu},
        )
        yield _case(
            "softplus",
            {"x": normal(rows, heads)},
            {},
            {"softplus": [heads]},
            {"plain": _softplus, "Softplus": softplus_operator},
        )
        yield _case(
            "gates",
            {"b": normal(rows, heads), "a": normal(heads, rows).T.copy()},
            {"dt_bias": normal(heads), "decay_rate": -abs(normal(heads))},
            {"beta": [heads], "decay": [heads]},
            {"plain": _gates, "LinearAttentionGate": linear_attention_gate},
        )
        count, dim = config["num_attention_heads"], config["head_dim"]
        half = int(dim * config.get("partial_rotary_factor", 0.25)) // 2
        angles = normal(rows, 1, half)
        yield _case(
            "rotary positions",
            {"x": normal(rows, count, dim), "cosine": angles, "sine": angles[::-1].copy()},
            {},
            {"rotated": [count, dim]},
            {"plain": _rotary, "RotaryEmbedding": rotary_embedding},
            heads=count,
            dim=dim,
            rotary_dim=2 * half,
        )


def _case(
    name: str,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Mapping[str, Sequence[int]],
    forms: Mapping[str, Lowering],
    **attributes: Any,
) -> LoweringCase:
    rows = next(iter(inputs.values())).shape[0]
    extent: int | str = 1 if rows == 1 else "rows"
    shapes: dict[str, Sequence[int | str]] = {output: [extent, *shape] for output, shape in outputs.items()}
    return LoweringCase(
        name, rows, inputs, frozenset(inputs), constants, shapes, forms, {"epsilon": EPSILON, **attributes}
    )


def _residual_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    x, skip, weight = inputs
    total = emitter.op("Add", [x, skip], "sum")
    return [rms_norm(emitter, total, weight, EPSILON), total]


def _rms_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [rms_norm(emitter, inputs[0], inputs[1], EPSILON)]


def _unit_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [unit_norm(emitter, inputs[0], EPSILON)]


def _silu(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [silu(emitter, inputs[0], "silu", "float32")]


def _scaled_silu(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [emitter.op("ScaledSiLU", list(inputs), "silu", domain="com.microsoft", alpha=1.0)]


def _softplus(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [softplus(emitter, inputs[0], "softplus")]


def _gates(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    b, a, dt_bias, decay_rate = inputs
    total = softplus(emitter, emitter.op("Add", [a, dt_bias], "step"), "softplus")
    return [emitter.op("Sigmoid", [b], "beta"), emitter.op("Mul", [total, decay_rate], "decay")]


def _rotary(emitter: Emitter, inputs: Sequence[Tensor], attributes: Attributes) -> list[Tensor]:
    return [rotate_heads(emitter, *inputs, attributes["rotary_dim"] // 2, attributes["dim"])]
