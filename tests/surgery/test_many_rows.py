"""Engines for more than 64 rows: the recurrent mixers against the recurrence in float64."""

from __future__ import annotations

import numpy as np
import pytest
from mixer_inputs import DELTA_RULE_CHANGES, WKV_CHANGES, Heads, bar, delta_rule_inputs, wkv_inputs
from mixers import delta_rule_chunk_graph, run_delta_rule, run_wkv, wkv_chunk_graph
from oracles import WkvState, delta_rule, relative_error, wkv

HEADS = Heads(1, 2, 64)
CHANNELS = 24
ROW_COUNTS = (128, 256, 512)
# A full chunk, and one cut off in the middle of a block, after which another full one follows.
CUTS = {"full": lambda rows: [rows], "cut and full": lambda rows: [rows - 37, rows]}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("prefill_rows", ROW_COUNTS)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_the_delta_rule(name: str, prefill_rows: int, cut: str, free_rows: bool) -> None:
    cuts = CUTS[cut](prefill_rows)
    inputs = delta_rule_inputs(name, sum(cuts), HEADS)
    out, state = run_delta_rule(delta_rule_chunk_graph(HEADS, prefill_rows, free_rows=free_rows), inputs, cuts)
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("prefill_rows", ROW_COUNTS)
@pytest.mark.parametrize("name", WKV_CHANGES)
def test_wkv(name: str, prefill_rows: int, cut: str, free_rows: bool) -> None:
    cuts = CUTS[cut](prefill_rows)
    inputs = wkv_inputs(name, sum(cuts), CHANNELS)
    out, present = run_wkv(wkv_chunk_graph(CHANNELS, prefill_rows, free_rows=free_rows), inputs, cuts)
    expected_out, expected = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    state = WkvState(*(np.float64(part) for part in present))
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state.mean, expected.mean) <= bar(name)
    scale = max(1.0, np.abs(expected.log_weight).max())
    assert np.abs(state.log_weight - expected.log_weight).max() <= bar(name) * scale
