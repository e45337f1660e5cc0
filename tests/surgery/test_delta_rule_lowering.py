"""The delta rule's chunk and row against the recurrence in float64: inputs, lengths, cuts, buffers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mixer_inputs import ADVERSARIAL_BAR, DELTA_RULE_CHANGES, RANDOM_BAR, Heads, bar, delta_rule_inputs
from mixers import delta_rule_chunk_graph, delta_rule_row_graph, grid, run_delta_rule
from oracles import delta_rule, relative_error

SMALL = Heads(2, 1, 32)
GEOMETRIES = (SMALL, Heads(2, 2, 32), Heads(1, 3, 32), Heads(1, 1, 128), Heads(1, 2, 128), Heads(1, 3, 128))


@pytest.mark.parametrize("heads", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_a_chunk_of_64_equals_the_recurrence(name: str, heads: Heads, free_rows: bool) -> None:
    inputs = delta_rule_inputs(name, 64, heads)
    out, state = delta_rule_chunk_graph(heads, 64, free_rows=free_rows)(**inputs)
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_130_rows_in_chunks_of_64_equal_the_recurrence(name: str, free_rows: bool) -> None:
    heads = Heads(1, 2, 128)
    inputs = delta_rule_inputs(name, 130, heads)
    out, state = run_delta_rule(delta_rule_chunk_graph(heads, 64, free_rows=free_rows), inputs, grid(130))
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("heads", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_single_rows_equal_the_recurrence(name: str, heads: Heads) -> None:
    inputs = delta_rule_inputs(name, 64, heads)
    out, state = run_delta_rule(delta_rule_row_graph(heads), inputs, [1] * 64)
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("name", ["random", "one token repeated", "forgetting rows among slow ones"])
def test_every_length_from_1_to_130(name: str, free_rows: bool) -> None:
    """Chunks of 64 chained are one pass: a chunk that starts from a zero state would fail at 65."""
    inputs = delta_rule_inputs(name, 130, SMALL)
    state = inputs["state"]
    expected = []
    for t in range(130):
        row = {key: x[t : t + 1] for key, x in inputs.items() if key != "state"}
        out, state = delta_rule(**row, state=state)
        expected.append((out, state))
    outs = np.concatenate([out for out, _ in expected])
    graph = delta_rule_chunk_graph(SMALL, 64, free_rows=free_rows)
    for rows in range(1, 131):
        prompt = {key: x if key == "state" else x[:rows] for key, x in inputs.items()}
        out, state = run_delta_rule(graph, prompt, grid(rows))
        assert relative_error(out, outs[:rows]) <= bar(name), rows
        assert relative_error(state, expected[rows - 1][1]) <= bar(name), rows


@pytest.mark.parametrize("prefill_rows", [1, 2, 3, 5, 8, 16, 31, 32, 33, 63])
def test_engines_for_fewer_rows_take_every_length_up_to_theirs(prefill_rows: int, free_rows: bool) -> None:
    heads = Heads(1, 2, 32)
    graph = delta_rule_chunk_graph(heads, prefill_rows, free_rows=free_rows)
    for name, rows in product(("random", "one token repeated"), range(1, prefill_rows + 1)):
        inputs = delta_rule_inputs(name, rows, heads)
        out, state = graph(**inputs)
        expected_out, expected_state = delta_rule(**inputs)
        assert relative_error(out, expected_out) <= bar(name), rows
        assert relative_error(state, expected_state) <= bar(name), rows


def compositions(total: int) -> list[list[int]]:
    """Return every way to write ``total`` as a sum of positive numbers in order."""
    cuts = [[total]]
    for first in range(1, total):
        cuts.extend([first, *rest] for rest in compositions(total - first))
    return cuts


@pytest.mark.parametrize("name", ["random", "one key, other values"])
def test_every_cut_of_a_prompt_gives_the_same(name: str, free_rows: bool) -> None:
    inputs = delta_rule_inputs(name, 8, SMALL)
    expected_out, expected_state = delta_rule(**inputs)
    graph = delta_rule_chunk_graph(SMALL, 8, free_rows=free_rows)
    for cuts in compositions(8):
        out, state = run_delta_rule(graph, inputs, cuts)
        assert relative_error(out, expected_out) <= bar(name), cuts
        assert relative_error(state, expected_state) <= bar(name), cuts


@pytest.mark.parametrize("cuts", [[1, 64, 65 - 1, 1], [63, 64, 3], [5] * 26, [64, 1, 64, 1], [2, 62, 2, 64]])
def test_uneven_cuts_of_130_rows(cuts: list[int], free_rows: bool) -> None:
    inputs = delta_rule_inputs("one token repeated", 130, SMALL)
    out, state = run_delta_rule(delta_rule_chunk_graph(SMALL, 64, free_rows=free_rows), inputs, cuts)
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= ADVERSARIAL_BAR
    assert relative_error(state, expected_state) <= ADVERSARIAL_BAR


def test_a_prompt_continued_on_the_grid_gives_the_same_bits(free_rows: bool) -> None:
    inputs = delta_rule_inputs("random", 142, SMALL)
    graph = delta_rule_chunk_graph(SMALL, 64, free_rows=free_rows)
    whole_out, whole_state = run_delta_rule(graph, inputs, grid(142))
    first = {name: x if name == "state" else x[:128] for name, x in inputs.items()}
    first_out, state = run_delta_rule(graph, first, grid(128))
    rest = {name: state if name == "state" else x[128:] for name, x in inputs.items()}
    rest_out, rest_state = run_delta_rule(graph, rest, grid(14))
    assert np.array_equal(whole_out, np.concatenate([first_out, rest_out]))
    assert np.array_equal(whole_state, rest_state)


@pytest.mark.parametrize("rows", [1, 17, 63])
def test_rows_after_the_last_valid_one_stay_untouched(rows: int, free_rows: bool) -> None:
    """Rows and outputs are the head of buffers of 64 rows, as a loader has them; what follows them is NaN."""
    graph = delta_rule_chunk_graph(SMALL, 64, free_rows=free_rows)
    inputs = delta_rule_inputs("random", rows, SMALL)
    expected_out, expected_state = delta_rule(**inputs)
    spare = np.full((64, expected_out.shape[1]), np.nan, np.float32)
    present = np.full(expected_state.shape, np.nan, np.float32)
    padded = {
        name: x if name == "state" else np.concatenate([x, np.full((64 - rows, x.shape[1]), np.nan, np.float32)])[:rows]
        for name, x in inputs.items()
    }
    graph.run_into({"out": spare[:rows], "present": present}, **padded)
    assert relative_error(spare[:rows], expected_out) <= RANDOM_BAR
    assert relative_error(present, expected_state) <= RANDOM_BAR
    assert np.isnan(spare[rows:]).all()
