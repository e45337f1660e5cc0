"""Inputs of a probe, a mixer each: random ones, and those that broke fused and chunked kernels elsewhere.

A mixer's call is given by the declared shapes of its inputs; the probe keeps its widths and has fewer heads, which
kernels treat alike. Values are float32, as every lowering hands them over. What is no mixer (norms, gates) is in
``pattern_probes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rowpack.engines.fused_operators.pattern_probes import PATTERN_PLANS
from rowpack.engines.fused_operators.probe_case import LONGEST_ROWS, ProbeCase, ProbePlan, Shape, bar_of
from rowpack.engines.fused_operators.recurrences import Array, cached_attention, causal_conv, delta_rule
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE

_MOST_KEY_HEADS = 2
_MOST_CHANNELS = 64

f32 = np.float32


def probe_plan(mixer: str, shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]) -> ProbePlan:
    """Return the plan for calls of ``mixer``, or for a pattern, with inputs of ``shapes``: one with a fused form."""
    plans: dict[str, Callable[..., ProbePlan]] = {
        **PATTERN_PLANS,
        GATED_DELTA_RULE: _delta_rule_plan,
        CAUSAL_CONV_STATE: _causal_conv_plan,
        CACHED_ATTENTION: _attention_plan,
    }
    return plans[mixer](shapes, attributes)


def _delta_rule_plan(shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]) -> ProbePlan:
    value_heads, key_dim, value_dim = (int(extent) for extent in shapes[5])
    key_heads = int(shapes[0][1]) // key_dim
    group = value_heads // key_heads
    key_heads = min(key_heads, _MOST_KEY_HEADS)
    heads = key_heads * group
    key_width, value_width = key_heads * key_dim, heads * value_dim
    declared: dict[str, Shape] = {
        "q": ("rows", key_width),
        "k": ("rows", key_width),
        "v": ("rows", value_width),
        "decay": ("rows", heads),
        "beta": ("rows", heads),
        "state": (heads, key_dim, value_dim),
    }
    cases = tuple(_delta_rule_cases(key_heads, heads, key_dim, value_dim))
    outputs: dict[str, Shape] = {"out": ("rows", value_width), "present": (heads, key_dim, value_dim)}
    return ProbePlan(declared, {}, outputs, cases, delta_rule)


def _delta_rule_cases(key_heads: int, heads: int, key_dim: int, value_dim: int) -> Iterator[ProbeCase]:
    rng = np.random.default_rng(20)

    def unit(rows: Array) -> Array:
        by_head = rows.reshape(LONGEST_ROWS, key_heads, key_dim)
        scaled: Array = (by_head / np.linalg.norm(by_head, axis=-1, keepdims=True)).reshape(LONGEST_ROWS, -1)
        return scaled.astype(f32)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(f32)

    def constant(value: float) -> Array:
        return np.full((LONGEST_ROWS, heads), value, f32)

    key_width = key_heads * key_dim
    random: dict[str, Array] = {
        "q": unit(normal(LONGEST_ROWS, key_width)) * f32(key_dim**-0.5),
        "k": unit(normal(LONGEST_ROWS, key_width)),
        "v": normal(LONGEST_ROWS, heads * value_dim),
        "decay": -np.exp(rng.uniform(-6, 2, (LONGEST_ROWS, heads))).astype(f32),
        "beta": rng.uniform(0.05, 0.95, (LONGEST_ROWS, heads)).astype(f32),
    }
    state = {"state": normal(heads, key_dim, value_dim)}
    repeated = {name: np.repeat(random[name][:1], LONGEST_ROWS, axis=0) for name in ("q", "k", "v")}
    parallel = unit(random["k"][:1] + 1e-3 * rng.standard_normal((LONGEST_ROWS, key_width)))
    forgetting = np.where(rng.random((LONGEST_ROWS, heads)) < 0.3, f32(-40), f32(-0.02))
    changes: dict[str, dict[str, Array]] = {
        "random": {},
        "one token repeated": {**repeated, "beta": constant(0.99), "decay": constant(-1e-3)},
        "nearly parallel keys": {"k": parallel, "beta": constant(0.99), "decay": constant(-1e-3)},
        "decay 1e-12 a row": {"decay": constant(float(np.log(1e-12)))},
        "decay 1 - 1e-7 a row": {"decay": constant(float(np.log1p(-1e-7)))},
        "forgetting rows among slow ones": {"decay": forgetting},
        "beta 1": {"beta": constant(1.0)},
    }
    for name, change in changes.items():
        yield ProbeCase(name, {**random, **change}, state, {}, bar_of(name))


def _causal_conv_plan(shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]) -> ProbePlan:
    channels, columns = min(int(shapes[1][0]), _MOST_CHANNELS), int(shapes[1][1])
    rng = np.random.default_rng(21)
    weight = {"weight": rng.standard_normal((channels, columns)).astype(f32)}
    x = rng.standard_normal((LONGEST_ROWS, channels)).astype(f32)
    state = {"state": rng.standard_normal((channels, columns)).astype(f32)}
    inputs = {"random": x, "one token repeated": np.repeat(x[:1], LONGEST_ROWS, axis=0), "sums of 1e5": f32(1e5) * x}
    cases = tuple(ProbeCase(name, {"x": rows}, state, weight, bar_of(name)) for name, rows in inputs.items())
    declared: dict[str, Shape] = {"x": ("rows", channels), "state": (channels, columns), "weight": (channels, columns)}
    outputs: dict[str, Shape] = {"out": ("rows", channels), "present": (channels, columns)}
    return ProbePlan(declared, weight, outputs, cases, causal_conv)


def _attention_plan(shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]) -> ProbePlan:
    dim = int(attributes["head_dim"])
    kv_heads = int(shapes[1][1]) // dim
    group = int(shapes[0][1]) // dim // kv_heads
    kv_heads = min(kv_heads, _MOST_KEY_HEADS)
    kv_width, query_width = kv_heads * dim, kv_heads * group * dim
    rng = np.random.default_rng(22)
    random = {
        "q": rng.standard_normal((LONGEST_ROWS, query_width)).astype(f32),
        "k": rng.standard_normal((LONGEST_ROWS, kv_width)).astype(f32),
        "v": rng.standard_normal((LONGEST_ROWS, kv_width)).astype(f32),
    }
    caches = {name: np.zeros((0, kv_width), f32) for name in ("cache_k", "cache_v")}
    repeated = {name: np.repeat(rows[:1], LONGEST_ROWS, axis=0) for name, rows in random.items()}
    changes = {
        "random": random,
        "one token repeated": repeated,
        "peaked scores": {**random, "q": f32(10) * random["q"]},
    }
    cases = tuple(ProbeCase(name, rows, caches, {}, bar_of(name)) for name, rows in changes.items())
    declared: dict[str, Shape] = {
        "q": ("rows", query_width),
        "k": ("rows", kv_width),
        "v": ("rows", kv_width),
        "cache_k": ("cache_rows", kv_width),
        "cache_v": ("cache_rows", kv_width),
        "mask": ("rows", "cache_rows+rows"),
    }

    def recurrence(**inputs: Array) -> tuple[Array]:
        return cached_attention(**inputs, head_dim=dim)

    return ProbePlan(declared, {}, {"out": ("rows", query_width)}, cases, recurrence, caches=True)
