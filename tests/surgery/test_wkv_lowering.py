"""WKV's chunk and row against the recurrence in float64: inputs, lengths, cuts, starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from mixer_inputs import WKV_CHANGES, Array, WkvInputs, bar, empty_state, wkv_inputs
from mixers import grid, run_wkv, wkv_chunk_graph, wkv_row_graph
from oracles import WkvState, relative_error, wkv
from subgraph import Subgraph

CHANNELS = 48
CUTS = {"64": [64], "130": [64, 64, 2], "8": [8], "1": [1]}


def assert_equal(out: Array, state: WkvState, expected: tuple[Array, WkvState], limit: float) -> None:
    """Compare outputs and state; of the state only what does not depend on the scale it is stored at."""
    expected_out, expected_state = expected
    assert relative_error(out, expected_out) <= limit
    wide = WkvState(*(np.float64(part) for part in state))
    assert relative_error(wide.mean, expected_state.mean) <= limit
    # A logarithm is as good as float32 can hold it, and a weight of e^0 is no reason to ask for more.
    scale = max(1.0, np.abs(expected_state.log_weight).max())
    assert np.abs(wide.log_weight - expected_state.log_weight).max() <= limit * scale


def check(graph: Subgraph, inputs: WkvInputs, cuts: Sequence[int], limit: float) -> None:
    expected = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    assert_equal(*run_wkv(graph, inputs, cuts), expected, limit)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("name", WKV_CHANGES)
def test_chunks_equal_the_recurrence(name: str, cuts: list[int], free_rows: bool) -> None:
    check(wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows), wkv_inputs(name, sum(cuts)), cuts, bar(name))


@pytest.mark.parametrize("name", WKV_CHANGES)
def test_single_rows_equal_the_recurrence(name: str) -> None:
    check(wkv_row_graph(CHANNELS), wkv_inputs(name, 130), [1] * 130, bar(name))


@pytest.mark.parametrize("name", ["random", "random, from zeroed buffers", "one token repeated", "keys of 1e2"])
def test_every_length_from_1_to_130(name: str, free_rows: bool) -> None:
    inputs = wkv_inputs(name, 130)
    expected, state = [], inputs.state
    for t in range(130):
        out, state = wkv(inputs.k[t : t + 1], inputs.v[t : t + 1], inputs.decay, inputs.bonus, state)
        expected.append((out, state))
    outs = np.concatenate([out for out, _ in expected])
    graph = wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows)
    for rows in range(1, 131):
        prompt = WkvInputs(inputs.k[:rows], inputs.v[:rows], inputs.decay, inputs.bonus, inputs.state)
        out, present = run_wkv(graph, prompt, grid(rows))
        assert_equal(out, present, (outs[:rows], expected[rows - 1][1]), bar(name))


@pytest.mark.parametrize("prefill_rows", [1, 2, 3, 5, 8, 16, 31, 32, 33, 63])
def test_engines_for_fewer_rows_take_every_length_up_to_theirs(prefill_rows: int, free_rows: bool) -> None:
    graph = wkv_chunk_graph(CHANNELS, prefill_rows, free_rows=free_rows)
    for name, rows in product(("random", "one token repeated"), range(1, prefill_rows + 1)):
        check(graph, wkv_inputs(name, rows), [rows], bar(name))


@pytest.mark.parametrize("cuts", [[1, 64, 64, 1], [63, 64, 3], [5] * 26, [64, 1, 64, 1], [7, 9, 64, 50]], ids=str)
@pytest.mark.parametrize("name", ["random", "one token repeated", "keys of 1e2"])
def test_uneven_cuts_of_130_rows(name: str, cuts: list[int], free_rows: bool) -> None:
    check(wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows), wkv_inputs(name, 130), cuts, bar(name))


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("key", [-200.0, -88.0, 0.0, 88.0, 200.0])
def test_zeroed_buffers_start_like_the_reference(key: float, rows: int, free_rows: bool) -> None:
    """Older runtimes zero every buffer: without the rule for ``den = 0`` a key below −87 gives 0/0 at once."""
    inputs = wkv_inputs("random", rows)
    inputs.k[:] = np.float32(key)
    chunk = wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows)
    for graph, cuts in ((chunk, [rows]), (wkv_row_graph(CHANNELS), [1] * rows)):
        results = []
        for start in (0.0, -1e38):
            inputs.state = empty_state(CHANNELS, start)
            results.append(run_wkv(graph, inputs, cuts))
        (zero_out, zero_state), (reference_out, reference_state) = results
        assert np.isfinite(zero_out).all()
        assert np.array_equal(zero_out, reference_out)
        assert all(map(np.array_equal, zero_state, reference_state))


def test_the_scale_of_the_incoming_state_is_free(free_rows: bool) -> None:
    """(num, den, max) and (2·num, 2·den, max − ln 2) are the same state."""
    inputs = wkv_inputs("random", 20)
    graph = wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows)
    expected = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    num, den, largest = inputs.state
    inputs.state = WkvState(2 * num, 2 * den, largest - np.float32(np.log(2)))
    assert_equal(*run_wkv(graph, inputs, [20]), expected, bar("random"))


@pytest.mark.parametrize("rows", [1, 9, 63])
def test_rows_after_the_last_valid_one_stay_untouched(rows: int, free_rows: bool) -> None:
    inputs = wkv_inputs("random", rows)
    spare = np.full((64, CHANNELS), np.nan, np.float32)
    present = {f"present_{word}": np.full((1, CHANNELS), np.nan, np.float32) for word in WkvState._fields}
    wkv_chunk_graph(CHANNELS, 64, free_rows=free_rows).run_into(
        {"out": spare[:rows], **present},
        k=inputs.k,
        v=inputs.v,
        decay=inputs.decay,
        bonus=inputs.bonus,
        **inputs.state._asdict(),
    )
    expected = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    assert_equal(spare[:rows], WkvState(*present.values()), expected, bar("random"))
    assert np.isnan(spare[rows:]).all()
