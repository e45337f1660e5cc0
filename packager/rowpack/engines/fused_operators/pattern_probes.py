"""Inputs of a probe for what is no mixer: norms, activations, gates and rotary positions.

Each row is computed by itself, so nothing is carried from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rowpack.engines.fused_operators.probe_case import LONGEST_ROWS, ProbeCase, ProbePlan, Shape, bar_of
from rowpack.engines.fused_operators.recurrences import (
    Array,
    decay_gates,
    residual_norm,
    rms_norm,
    rotary,
    silu,
    softplus,
    unit_norm,
)
from rowpack.surgery.linear_attention_gate import DECAY_GATES
from rowpack.surgery.residual_norm import RESIDUAL_NORM
from rowpack.surgery.root_mean_square_norm import RMS_NORM, UNIT_NORM
from rowpack.surgery.rotary_embedding import ROTARY
from rowpack.surgery.silu import SILU
from rowpack.surgery.softplus import SOFTPLUS

f32 = np.float32
Shapes = Sequence[Sequence[int | str]]


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(f32)


def _cases(changes: Mapping[str, Mapping[str, Array]], fixed: Mapping[str, Array]) -> tuple[ProbeCase, ...]:
    return tuple(ProbeCase(name, rows, {}, fixed, bar_of(name)) for name, rows in changes.items())


def _repeated(rows: Array) -> Array:
    return np.repeat(rows[:1], LONGEST_ROWS, axis=0)


def _hard_rows(x: Array) -> dict[str, Array]:
    """Return rows that norms are wrong on: equal ones, tiny and huge ones, and one value that outweighs the rest."""
    one_large = x.copy()
    one_large[:, 0] = f32(1e4)
    return {
        "random": x,
        "one token repeated": _repeated(x),
        "rows below epsilon": f32(1e-4) * x,
        "rows of 1e5": f32(1e5) * x,
        "one large value a row": one_large,
    }


def _residual_norm_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    width, epsilon = int(shapes[2][0]), float(attributes["epsilon"])
    weight = {"weight": _normal(23, width)}
    skip = _normal(24, LONGEST_ROWS, width)
    changes = {name: {"x": x, "skip": skip} for name, x in _hard_rows(_normal(25, LONGEST_ROWS, width)).items()}
    changes["one token repeated"]["skip"] = _repeated(skip)
    changes["rows below epsilon"]["skip"] = f32(1e-4) * skip
    changes["rows of 1e5"]["skip"] = f32(1e5) * skip
    declared: dict[str, Shape] = {"x": ("rows", width), "skip": ("rows", width), "weight": (width,)}

    def definition(**inputs: Array) -> tuple[Array, Array]:
        return residual_norm(**inputs, epsilon=epsilon)

    outputs: dict[str, Shape] = {"normed": ("rows", width), "sum": ("rows", width)}
    return ProbePlan(declared, weight, outputs, _cases(changes, weight), definition)


def _rms_norm_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    width, epsilon = int(shapes[1][0]), float(attributes["epsilon"])
    weight = {"weight": _normal(26, width)}
    changes = {name: {"x": x} for name, x in _hard_rows(_normal(27, LONGEST_ROWS, width)).items()}

    def definition(**inputs: Array) -> tuple[Array]:
        return rms_norm(**inputs, epsilon=epsilon)

    declared: dict[str, Shape] = {"x": ("rows", width), "weight": (width,)}
    return ProbePlan(declared, weight, {"normed": ("rows", width)}, _cases(changes, weight), definition)


def _unit_norm_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    width, epsilon = int(shapes[0][1]), float(attributes["epsilon"])
    changes = {name: {"x": x} for name, x in _hard_rows(_normal(28, LONGEST_ROWS, width)).items()}

    def definition(**inputs: Array) -> tuple[Array]:
        return unit_norm(**inputs, epsilon=epsilon)

    declared: dict[str, Shape] = {"x": ("rows", width)}
    return ProbePlan(declared, {}, {"unit": ("rows", width)}, _cases(changes, {}), definition)


def _silu_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    width = int(shapes[0][1])
    x = _normal(29, LONGEST_ROWS, width)
    inputs = {"random": x, "near zero": f32(1e-6) * x, "saturated": f32(60) * x, "no exponential of it": f32(1e3) * x}
    declared: dict[str, Shape] = {"x": ("rows", width)}
    changes = {name: {"x": rows} for name, rows in inputs.items()}
    return ProbePlan(declared, {}, {"silu": ("rows", width)}, _cases(changes, {}), silu)


def _softplus_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    width = int(shapes[0][1])
    x = _normal(35, LONGEST_ROWS, width)
    inputs = {"random": x, "near zero": f32(1e-6) * x, "either side": f32(30) * x, "no exponential of it": f32(300) * x}
    declared: dict[str, Shape] = {"x": ("rows", width)}
    changes = {name: {"x": rows} for name, rows in inputs.items()}
    return ProbePlan(declared, {}, {"softplus": ("rows", width)}, _cases(changes, {}), softplus)


def _decay_gates_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    heads = int(shapes[2][0])
    fixed = {"dt_bias": _normal(30, heads), "decay_rate": -np.exp(_normal(31, heads))}
    random = {"b": _normal(32, LONGEST_ROWS, heads), "a": _normal(33, LONGEST_ROWS, heads)}
    half = np.arange(heads) % 2 == 1
    changes = {
        "random": random,
        "one token repeated": {name: _repeated(rows) for name, rows in random.items()},
        "heads without decay": {**random, "a": np.where(half, random["a"] - f32(30), random["a"])},
        "no exponential of it": {**random, "a": random["a"] + f32(200)},
        "strengths of 0 and 1": {**random, "b": f32(100) * random["b"]},
    }
    rows: Shape = ("rows", heads)
    declared: dict[str, Shape] = {"b": rows, "a": rows, "dt_bias": (heads,), "decay_rate": (heads,)}
    outputs: dict[str, Shape] = {"beta": rows, "decay": rows}
    return ProbePlan(declared, fixed, outputs, _cases(changes, fixed), decay_gates)


def _rotary_plan(shapes: Shapes, attributes: Mapping[str, Any]) -> ProbePlan:
    heads, dim, half = int(attributes["heads"]), int(attributes["dim"]), int(attributes["rotary_dim"]) // 2
    x = _normal(34, LONGEST_ROWS, heads, dim)
    frequencies = 1e7 ** (-np.arange(half) / half)
    changes = {}
    for name, first in {"random": 0, "positions up to 262,144": 262144 - LONGEST_ROWS}.items():
        angles = (first + np.arange(LONGEST_ROWS))[:, None, None] * frequencies
        changes[name] = {"x": x, "cosine": np.cos(angles).astype(f32), "sine": np.sin(angles).astype(f32)}
    angles_shape: Shape = ("rows", 1, half)
    declared: dict[str, Shape] = {"x": ("rows", heads, dim), "cosine": angles_shape, "sine": angles_shape}
    return ProbePlan(declared, {}, {"rotated": ("rows", heads, dim)}, _cases(changes, {}), rotary)


PATTERN_PLANS: dict[str, Callable[[Shapes, Mapping[str, Any]], ProbePlan]] = {
    RESIDUAL_NORM.name: _residual_norm_plan,
    RMS_NORM.name: _rms_norm_plan,
    UNIT_NORM.name: _unit_norm_plan,
    SILU.name: _silu_plan,
    DECAY_GATES.name: _decay_gates_plan,
    SOFTPLUS.name: _softplus_plan,
    ROTARY.name: _rotary_plan,
}
