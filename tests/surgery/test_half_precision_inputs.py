"""What half-precision weights and activations do to the mixers.

In a fp16 or bf16 build projections come out in the work dtype and are widened: the mixers, their states, decays and
gates are float32. So the mixer loses nothing of its own (first test), and its result moves by about the rounding
of what it was given (second test), never by a multiple that grows with the rows.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mixer_inputs import DELTA_RULE_CHANGES, WKV_CHANGES, Array, Heads, bar, delta_rule_inputs, wkv_inputs
from mixers import delta_rule_chunk_graph, grid, run_delta_rule, run_wkv, wkv_chunk_graph
from oracles import delta_rule, relative_error, wkv

WORK: dict[str, tuple[Any, float]] = {"fp16": (np.float16, 2e-3), "bf16": (ml_dtypes.bfloat16, 2e-2)}
HEADS = Heads(2, 2, 32)

# Rounding a key of 100 to half precision moves its weight e^k by several percent before any mixer sees it.
LARGE_KEYS = ("keys of 1e2", "keys of 1e2, decay -1e-6", "keys of 1e2, decay -20", "zeroed buffers, keys near -200")


def rounded(values: Array, work: Any) -> Array:
    return values.astype(work).astype(np.float32)


@pytest.mark.parametrize("precision", WORK)
@pytest.mark.parametrize("name", ["random", "one token repeated", "nearly parallel keys"])
def test_the_delta_rule_loses_nothing_of_its_own(name: str, precision: str) -> None:
    inputs = delta_rule_inputs(name, 130, HEADS)
    inputs.update({key: rounded(inputs[key], WORK[precision][0]) for key in ("q", "k", "v")})
    out, state = run_delta_rule(delta_rule_chunk_graph(HEADS, 64), inputs, grid(130))
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("precision", WORK)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_rounded_queries_keys_and_values_move_the_delta_rule_by_their_rounding(name: str, precision: str) -> None:
    work, limit = WORK[precision]
    inputs = delta_rule_inputs(name, 130, HEADS)
    expected_out, expected_state = delta_rule(**inputs)
    inputs.update({key: rounded(inputs[key], work) for key in ("q", "k", "v")})
    out, state = run_delta_rule(delta_rule_chunk_graph(HEADS, 64), inputs, grid(130))
    assert relative_error(out, expected_out) <= limit
    assert relative_error(state, expected_state) <= limit


@pytest.mark.parametrize("precision", WORK)
@pytest.mark.parametrize("name", ["random", "one token repeated", "two-token cycle", "log decay -1.4"])
def test_rounded_gate_projections_move_the_delta_rule_by_their_rounding(name: str, precision: str) -> None:
    """The projections b and a are in the work dtype; sigmoid, softplus and the decay are float32."""
    work, limit = WORK[precision]
    inputs = delta_rule_inputs(name, 130, HEADS)
    expected_out, expected_state = delta_rule(**inputs)
    beta, decay = inputs["beta"].astype(np.float64), inputs["decay"].astype(np.float64)
    b = rounded(np.log(beta / (1 - beta)), work)
    a = rounded(np.log(np.expm1(-decay)), work)
    inputs["beta"] = (1 / (1 + np.exp(-b))).astype(np.float32)
    inputs["decay"] = -np.logaddexp(0, a).astype(np.float32)
    out, state = run_delta_rule(delta_rule_chunk_graph(HEADS, 64), inputs, grid(130))
    assert relative_error(out, expected_out) <= limit
    assert relative_error(state, expected_state) <= limit


@pytest.mark.parametrize("precision", WORK)
@pytest.mark.parametrize("name", WKV_CHANGES)
def test_rounded_keys_and_values_of_wkv(name: str, precision: str) -> None:
    work, limit = WORK[precision]
    inputs = wkv_inputs(name, 130)
    exact_out, exact_state = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    inputs.k, inputs.v = rounded(inputs.k, work), rounded(inputs.v, work)
    out, state = run_wkv(wkv_chunk_graph(48, 64), inputs, grid(130))
    mean = np.float64(state.num) / np.float64(state.den)
    expected_out, expected_state = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(mean, expected_state.mean) <= bar(name)
    if name not in LARGE_KEYS:
        assert relative_error(out, exact_out) <= limit
        assert relative_error(mean, exact_state.mean) <= limit
