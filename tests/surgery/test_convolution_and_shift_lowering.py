"""The short convolution and the token shift, chunk and row, against their definitions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from mixer_inputs import RANDOM_BAR, Array
from mixers import grid
from oracles import causal_conv, relative_error, token_shift
from subgraph import Subgraph, lowered

from rowpack.surgery.causal_conv import causal_conv_chunk, causal_conv_row
from rowpack.surgery.token_shift import token_shift_chunk, token_shift_row

CHANNELS, COLUMNS, HIDDEN = 24, 4, 16
WEIGHT = np.random.default_rng(3).standard_normal((CHANNELS, COLUMNS)).astype(np.float32)


@cache
def conv_graph(lowering: Any, rows: int | str) -> Subgraph:
    state = (CHANNELS, COLUMNS)
    return lowered(
        lowering,
        {"x": ("float32", (rows, CHANNELS)), "state": ("float32", state), "weight": ("float32", state)},
        {"out": (rows, CHANNELS), "present": state},
        {"weight": WEIGHT},
    )


def run_conv(graph: Subgraph, x: Array, state: Array, cuts: list[int]) -> tuple[Array, Array]:
    outs, start = [], 0
    for count in cuts:
        out, state = graph(x=x[start : start + count], state=state)
        outs.append(out)
        start += count
    return np.concatenate(outs), state


def conv_inputs(rows: int, scale: float = 1.0) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows)
    x = scale * rng.standard_normal((rows, CHANNELS))
    return x.astype(np.float32), rng.standard_normal((CHANNELS, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 100.0])
def test_convolution_of_every_length(scale: float) -> None:
    chunk, row = conv_graph(causal_conv_chunk, "rows"), conv_graph(causal_conv_row, 1)
    x, state = conv_inputs(130, scale)
    for rows in range(1, 131):
        expected_out, expected_state = causal_conv(x[:rows], state, WEIGHT)
        for graph, cuts in ((chunk, grid(rows)), (row, [1] * rows)):
            if graph is row and rows not in (1, 2, 3, 4, 130):
                continue
            out, present = run_conv(graph, x[:rows], state, cuts)
            assert relative_error(out, expected_out) <= RANDOM_BAR, rows
            assert np.array_equal(present, expected_state), "the state is copied, not computed"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_convolution_of_prompts_shorter_than_the_kernel_keeps_what_was_there(rows: int) -> None:
    x, state = conv_inputs(rows)
    out, present = run_conv(conv_graph(causal_conv_chunk, "rows"), x, state, [rows])
    assert np.array_equal(present, np.concatenate([state, x.T], axis=1)[:, -COLUMNS:])
    assert relative_error(out, causal_conv(x, state, WEIGHT)[0]) <= RANDOM_BAR


def test_convolution_never_reads_the_oldest_column() -> None:
    """The window of the new row holds itself and three columns: the fourth is there for the layout's sake."""
    x, state = conv_inputs(2)
    broken = state.copy()
    broken[:, 0] = np.nan
    for lowering, rows, cuts in ((causal_conv_chunk, "rows", [2]), (causal_conv_row, 1, [1, 1])):
        out, present = run_conv(conv_graph(lowering, rows), x, broken, cuts)
        assert np.isfinite(out).all()
        assert np.array_equal(present, causal_conv(x, state, WEIGHT)[1])


@pytest.mark.parametrize("cuts", [[1, 1, 1, 7], [3, 3, 4], [9, 1], [2, 8]], ids=str)
def test_cuts_of_a_prompt_give_the_same_bits(cuts: list[int]) -> None:
    x, state = conv_inputs(10)
    graph = conv_graph(causal_conv_chunk, "rows")
    whole, cut = run_conv(graph, x, state, [10]), run_conv(graph, x, state, cuts)
    assert np.array_equal(whole[0], cut[0])
    assert np.array_equal(whole[1], cut[1])


def test_silu_of_large_sums_does_not_overflow() -> None:
    x, state = conv_inputs(5, 1e5)
    out, _ = run_conv(conv_graph(causal_conv_chunk, "rows"), x, state, [5])
    assert relative_error(out, causal_conv(x, state, WEIGHT)[0]) <= RANDOM_BAR


@cache
def shift_graph(lowering: Any, rows: int | str) -> Subgraph:
    return lowered(
        lowering,
        {"x": ("float32", (rows, HIDDEN)), "previous": ("float32", (1, HIDDEN))},
        {"shifted": (rows, HIDDEN), "present": (1, HIDDEN)},
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 63, 64, 130])
def test_token_shift(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, HIDDEN)).astype(np.float32)
    previous = rng.standard_normal((1, HIDDEN)).astype(np.float32)
    expected = token_shift(x, previous)
    for graph, cuts in (
        (shift_graph(token_shift_chunk, "rows"), grid(rows)),
        (shift_graph(token_shift_row, 1), [1] * rows),
    ):
        shifted, state, start = [], previous, 0
        for count in cuts:
            out, state = graph(x=x[start : start + count], previous=state)
            shifted.append(out)
            start += count
        assert np.array_equal(np.concatenate(shifted), expected[0])
        assert np.array_equal(state, expected[1])
