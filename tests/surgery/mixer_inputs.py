"""Named inputs of the recurrent mixers: random ones, and those that broke chunked kernels elsewhere.

Each maker takes a generator and the row count, so one name gives any length. RANDOM and ADVERSARIAL are the bars of
the float32 engines against a float64 recurrence, relative to a tensor's largest magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from oracles import WkvState

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]

RANDOM_BAR = 2e-6
ADVERSARIAL_BAR = 1e-5

f32 = np.float32


@dataclass(frozen=True)
class Heads:
    """Geometry of a delta rule: ``group`` value heads share a key head; keys and values are ``dim`` wide."""

    key_heads: int
    group: int
    dim: int

    @property
    def value_heads(self) -> int:
        """Heads of values, states, decays and strengths."""
        return self.key_heads * self.group

    def __str__(self) -> str:
        return f"{self.key_heads}x{self.group}x{self.dim}"


def unit_rows(rows: Array, dim: int) -> Array:
    """Scale each head of ``[S, heads · dim]`` to norm one."""
    heads = rows.reshape(rows.shape[0], -1, dim)
    return (heads / np.linalg.norm(heads, axis=-1, keepdims=True)).reshape(rows.shape).astype(f32)


def random_delta_rule(rng: np.random.Generator, rows: int, heads: Heads) -> Inputs:
    """Unit keys, scaled unit queries, log decays between −0.002 and −7 a row, and a state that is not zero."""
    key_width, value_heads, dim = heads.key_heads * heads.dim, heads.value_heads, heads.dim
    return {
        "q": unit_rows(rng.standard_normal((rows, key_width)), dim) * f32(dim**-0.5),
        "k": unit_rows(rng.standard_normal((rows, key_width)), dim),
        "v": rng.standard_normal((rows, value_heads * dim)).astype(f32),
        "decay": -np.exp(rng.uniform(-6, 2, (rows, value_heads))).astype(f32),
        "beta": rng.uniform(0.05, 0.95, (rows, value_heads)).astype(f32),
        "state": rng.standard_normal((value_heads, dim, dim)).astype(f32),
    }


def _set(name: str, value: float) -> Callable[[Inputs, np.random.Generator, Heads], None]:
    """Return a change that fills one input with a number."""

    def change(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
        inputs[name][:] = f32(value)

    return change


def _one_token(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    for name in ("q", "k", "v"):
        inputs[name][:] = inputs[name][:1]
    inputs["beta"][:] = f32(0.99)
    inputs["decay"][:] = f32(-1e-3)


def _one_key(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    inputs["k"][:] = inputs["k"][:1]
    inputs["beta"][:] = f32(0.99)
    inputs["decay"][:] = f32(-1e-4)


def _two_tokens(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    for name in ("q", "k", "v"):
        rows = inputs[name]
        rows[:] = rows[np.arange(rows.shape[0]) % min(2, rows.shape[0])]
    inputs["beta"][:] = f32(0.99)
    inputs["decay"][:] = f32(-0.01)


def _nearly_parallel(spread: float, beta: float, decay: float) -> Any:
    def change(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
        keys = inputs["k"]
        keys[:] = unit_rows(keys[:1] + spread * rng.standard_normal(keys.shape), heads.dim)
        inputs["beta"][:], inputs["decay"][:] = f32(beta), f32(decay)

    return change


def _forgetting_rows(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    shape = inputs["decay"].shape
    inputs["decay"][:] = np.where(rng.random(shape) < 0.3, f32(-40), f32(-0.02))


def _one_forgetting_row(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    inputs["decay"][:] = f32(-0.01)
    inputs["decay"][min(3, inputs["decay"].shape[0] - 1)] = f32(-1000)


def _fast_then_slow(inputs: Inputs, rng: np.random.Generator, heads: Heads) -> None:
    half = inputs["decay"].shape[0] // 2
    inputs["decay"][:half], inputs["decay"][half:] = f32(-20), f32(-0.01)


DELTA_RULE_CHANGES: dict[str, Any] = {
    "random": None,
    "one token repeated": _one_token,
    "one key, other values": _one_key,
    "two-token cycle": _two_tokens,
    "decay 1e-12 a row": _set("decay", float(np.log(1e-12))),
    "decay 1 - 1e-7 a row": _set("decay", float(np.log1p(-1e-7))),
    "log decay -1e-12": _set("decay", -1e-12),
    "no decay": _set("decay", 0.0),
    "log decay -1.4": _set("decay", -1.4),
    "log decay -20": _set("decay", -20.0),
    "forgetting rows among slow ones": _forgetting_rows,
    "one row that forgets everything": _one_forgetting_row,
    "fast decay, then slow": _fast_then_slow,
    "beta 1e-7": _set("beta", 1e-7),
    "beta 1 - 1e-7": _set("beta", 1 - 1e-7),
    "beta 1 exactly": _set("beta", 1.0),
    "nearly parallel keys": _nearly_parallel(1e-3, 0.99, -1e-3),
    "nearly parallel keys, beta to 1": _nearly_parallel(1e-5, 1 - 1e-7, -1e-7),
}


def delta_rule_inputs(name: str, rows: int, heads: Heads, seed: int = 0) -> Inputs:
    """Return the named inputs: q, k, v, decay, beta, state."""
    rng = np.random.default_rng([seed, rows])
    inputs = random_delta_rule(rng, rows, heads)
    if DELTA_RULE_CHANGES[name] is not None:
        DELTA_RULE_CHANGES[name](inputs, rng, heads)
    return inputs


def bar(name: str) -> float:
    """Return the bar of the inputs called ``name``."""
    return RANDOM_BAR if name.startswith("random") else ADVERSARIAL_BAR


@dataclass
class WkvInputs:
    """Inputs of one WKV: keys and values ``[S, channels]``, decay ≤ 0 and bonus ``[channels]``, a state."""

    k: Array
    v: Array
    decay: Array
    bonus: Array
    state: WkvState


def _random_wkv(rng: np.random.Generator, rows: int, channels: int) -> WkvInputs:
    """Decays from −0.007 to −20 a row, as trained models have them, and a state that is not empty."""
    row = (1, channels)
    return WkvInputs(
        rng.standard_normal((rows, channels)).astype(f32),
        rng.standard_normal((rows, channels)).astype(f32),
        -np.exp(rng.uniform(-5, 3, channels)).astype(f32),
        rng.uniform(-2, 1, channels).astype(f32),
        WkvState(
            rng.standard_normal(row).astype(f32),
            rng.uniform(0.5, 3, row).astype(f32),
            rng.standard_normal(row).astype(f32),
        ),
    )


def empty_state(channels: int, largest: float) -> WkvState:
    """Return a state that has seen nothing: −1e38 is the reference's maximum, 0 that of older runtimes."""
    zeros = np.zeros((1, channels), f32)
    return WkvState(zeros, zeros.copy(), np.full((1, channels), largest, f32))


def _wkv_keys(change: Callable[[Array], Array], decay: float | None = None) -> Any:
    def changed(inputs: WkvInputs) -> None:
        inputs.k = change(inputs.k).astype(f32)
        if decay is not None:
            inputs.decay[:] = f32(decay)

    return changed


def _wkv_start(largest: float, key_shift: float = 0.0) -> Any:
    def changed(inputs: WkvInputs) -> None:
        inputs.state = empty_state(inputs.k.shape[1], largest)
        inputs.k = inputs.k + f32(key_shift)

    return changed


def _wkv_tokens(count: int) -> Any:
    def changed(inputs: WkvInputs) -> None:
        index = np.arange(inputs.k.shape[0]) % min(count, inputs.k.shape[0])
        inputs.k, inputs.v = inputs.k[index], inputs.v[index]
        inputs.state = empty_state(inputs.k.shape[1], -1e38)

    return changed


def _one_large_key(keys: Array) -> Array:
    result = np.zeros_like(keys)
    result[0] = 100
    return result


WKV_CHANGES: dict[str, Any] = {
    "random": None,
    "random, from an empty state": _wkv_start(-1e38),
    "random, from zeroed buffers": _wkv_start(0.0),
    "zeroed buffers, keys near -200": _wkv_start(0.0, key_shift=-200.0),
    "one token repeated": _wkv_tokens(1),
    "two-token cycle": _wkv_tokens(2),
    "decay -1e-6": _wkv_keys(lambda k: k, -1e-6),
    "decay -20": _wkv_keys(lambda k: k, -20.0),
    "keys of 1e2": _wkv_keys(lambda k: 100 * k),
    "keys of 1e2, decay -1e-6": _wkv_keys(lambda k: 100 * k, -1e-6),
    "keys of 1e2, decay -20": _wkv_keys(lambda k: 100 * k, -20.0),
    "every key 100, decay -1e-6": _wkv_keys(lambda k: np.full_like(k, 100), -1e-6),
    "every key -100": _wkv_keys(lambda k: np.full_like(k, -100)),
    "one large key, then none": _wkv_keys(_one_large_key),
}


def wkv_inputs(name: str, rows: int, channels: int = 48, seed: int = 0) -> WkvInputs:
    """Return the named inputs."""
    inputs = _random_wkv(np.random.default_rng([seed, rows]), rows, channels)
    if WKV_CHANGES[name] is not None:
        WKV_CHANGES[name](inputs)
    return inputs
