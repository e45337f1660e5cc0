"""Rows in blocks of whole numbers: how far off they may be, whatever the rows hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rowpack.block_quantization import BLOCK_COLUMNS, divides_into_blocks, quantize_blocks

Array = np.ndarray[Any, Any]
BITS = (8, 4)
COLUMNS = 4 * BLOCK_COLUMNS


def check(rows: Array, bits: int) -> Array:
    """Assert what holds for all rows, and return the error of each value in steps of its block."""
    found = quantize_blocks(rows, bits)
    largest = 2**bits - 1
    for numbers in (found.codes, found.zero_points):
        assert np.array_equal(numbers, np.rint(numbers))
        assert numbers.min() >= 0
        assert numbers.max() <= largest
    assert np.isfinite(found.scales).all()
    assert (found.scales >= 0).all()
    restored = found.dequantized().astype(np.float64)
    steps = np.repeat(found.scales.astype(np.float64), BLOCK_COLUMNS, axis=1)
    error = np.abs(restored - rows)
    # Half a step for the value and half for the zero point; a block of denormal numbers becomes zeros.
    assert (error <= 1.001 * steps + 2.0**-118).all()
    return np.divide(error, steps, out=np.zeros_like(error), where=steps > 0)


@pytest.mark.parametrize("bits", BITS)
def test_random_rows_are_off_by_half_a_step_mostly(bits: int) -> None:
    rows = np.random.default_rng(0).standard_normal((64, COLUMNS)).astype(np.float32)
    assert np.quantile(check(rows, bits), 0.95) <= 0.5


@pytest.mark.parametrize("bits", BITS)
def test_zeros_stay_zeros(bits: int) -> None:
    rows = np.random.default_rng(0).standard_normal((8, COLUMNS)).astype(np.float32)
    rows[:, ::5] = 0
    rows[3] = 0
    found = quantize_blocks(rows, bits).dequantized()
    assert not found[rows == 0].any()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("value", [1.0, -1.0, 3e-5, -7e9])
def test_a_constant_row_is_exact_but_for_rounding(bits: int, value: float) -> None:
    rows = np.full((2, COLUMNS), value, np.float32)
    assert np.allclose(quantize_blocks(rows, bits).dequantized(), rows, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", BITS)
def test_an_outlier_spoils_its_own_block_only(bits: int) -> None:
    rows = np.random.default_rng(1).standard_normal((4, COLUMNS)).astype(np.float32)
    before = quantize_blocks(rows, bits).dequantized()
    rows[2, 40] = 1e6
    check(rows, bits)
    after = quantize_blocks(rows, bits).dequantized()
    assert after[2, 40] == pytest.approx(1e6, rel=1e-5)
    untouched = np.ones_like(rows, bool)
    untouched[2, BLOCK_COLUMNS : 2 * BLOCK_COLUMNS] = False
    assert np.array_equal(before[untouched], after[untouched])


@pytest.mark.parametrize("bits", BITS)
def test_a_row_does_not_depend_on_its_neighbours(bits: int) -> None:
    """Rows are quantised in pieces as they stream by."""
    rows = np.random.default_rng(2).standard_normal((7, COLUMNS)).astype(np.float32)
    whole = quantize_blocks(rows, bits)
    parts = [quantize_blocks(rows[:3], bits), quantize_blocks(rows[3:], bits)]
    for part in ("codes", "scales", "zero_points"):
        assert np.array_equal(getattr(whole, part), np.concatenate([getattr(piece, part) for piece in parts]))


@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=60, deadline=None)
@given(rows=arrays(np.float32, (3, 64), elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_any_finite_rows(bits: int, rows: Array) -> None:
    check(rows, bits)


def test_more_bits_are_closer() -> None:
    rows = np.random.default_rng(3).standard_normal((16, COLUMNS)).astype(np.float32)
    errors = [float(np.abs(quantize_blocks(rows, bits).dequantized() - rows).max()) for bits in BITS]
    assert errors[0] < errors[1] / 10


@pytest.mark.parametrize(
    ("columns", "whole"), [(64, True), (192, True), (1024, True), (32, False), (96, False), (80, False)]
)
def test_rows_of_whole_bytes_of_blocks(columns: int, whole: bool) -> None:
    assert divides_into_blocks(columns) is whole
