"""Rows in blocks of whole numbers: how far off they may be, whatever the rows hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rowpack.block_quantization import block_columns, quantize_blocks

Array = np.ndarray[Any, Any]
BITS = (8, 4)
FORMS = {
    "8 bits, blocks of 128": (8, 512, 128),
    "8 bits, blocks of 64": (8, 192, 64),
    "4 bits, blocks of 32": (4, 192, 32),
}
"""Bits, columns of a row, and the columns of a block that they come to."""

forms = pytest.mark.parametrize(("bits", "columns", "block"), FORMS.values(), ids=FORMS)


def check(rows: Array, bits: int, block: int) -> Array:
    """Assert what holds for all rows, and return the error of each value in steps of its block."""
    found = quantize_blocks(rows, bits)
    assert found.scales.shape == found.zero_points.shape == (rows.shape[0], rows.shape[1] // block)
    largest = 2**bits - 1
    for numbers in (found.codes, found.zero_points):
        assert np.array_equal(numbers, np.rint(numbers))
        assert numbers.min() >= 0
        assert numbers.max() <= largest
    assert np.isfinite(found.scales).all()
    assert (found.scales >= 0).all()
    restored = found.dequantized().astype(np.float64)
    steps = np.repeat(found.scales.astype(np.float64), block, axis=1)
    error = np.abs(restored - rows)
    # Half a step for the value and half for the zero point; a block of denormal numbers becomes zeros.
    assert (error <= 1.001 * steps + 2.0**-118).all()
    return np.divide(error, steps, out=np.zeros_like(error), where=steps > 0)


@forms
def test_random_rows_are_off_by_half_a_step_mostly(bits: int, columns: int, block: int) -> None:
    rows = np.random.default_rng(0).standard_normal((64, columns)).astype(np.float32)
    assert np.quantile(check(rows, bits, block), 0.95) <= 0.5


@forms
def test_zeros_stay_zeros(bits: int, columns: int, block: int) -> None:
    rows = np.random.default_rng(0).standard_normal((8, columns)).astype(np.float32)
    rows[5, :block] = 0
    rows[:, ::5] = 0
    rows[3] = 0
    found = quantize_blocks(rows, bits).dequantized()
    assert not found[rows == 0].any()


@forms
@pytest.mark.parametrize("value", [1.0, -1.0, 3e-5, -7e9])
def test_a_constant_row_is_exact_but_for_rounding(bits: int, columns: int, block: int, value: float) -> None:
    rows = np.full((2, columns), value, np.float32)
    assert np.allclose(quantize_blocks(rows, bits).dequantized(), rows, rtol=1e-6, atol=0)


@forms
def test_an_outlier_spoils_its_own_block_only(bits: int, columns: int, block: int) -> None:
    rows = np.random.default_rng(1).standard_normal((4, columns)).astype(np.float32)
    before = quantize_blocks(rows, bits).dequantized()
    rows[2, block + 8] = 1e6
    check(rows, bits, block)
    after = quantize_blocks(rows, bits).dequantized()
    assert after[2, block + 8] == pytest.approx(1e6, rel=1e-5)
    touched = np.zeros_like(rows, bool)
    touched[2, block : 2 * block] = True
    assert np.array_equal(before[~touched], after[~touched])
    assert np.count_nonzero(after[touched]) == 1, "the step is larger than all others of the block"


@forms
def test_a_row_does_not_depend_on_its_neighbours(bits: int, columns: int, block: int) -> None:
    """Rows are quantised in pieces as they stream by."""
    rows = np.random.default_rng(2).standard_normal((7, columns)).astype(np.float32)
    whole = quantize_blocks(rows, bits)
    parts = [quantize_blocks(rows[:3], bits), quantize_blocks(rows[3:], bits)]
    for part in ("codes", "scales", "zero_points"):
        assert np.array_equal(getattr(whole, part), np.concatenate([getattr(piece, part) for piece in parts]))


any_finite = st.floats(-(2.0**100), 2.0**100, width=32)


@pytest.mark.parametrize("bits", BITS)
@settings(max_examples=60, deadline=None)
@given(rows=arrays(np.float32, (3, 64), elements=any_finite) | arrays(np.float32, (2, 128), elements=any_finite))
def test_any_finite_rows(bits: int, rows: Array) -> None:
    check(rows, bits, {8: rows.shape[1], 4: 32}[bits])


def test_more_bits_are_closer() -> None:
    rows = np.random.default_rng(3).standard_normal((16, 128)).astype(np.float32)
    errors = [float(np.abs(quantize_blocks(rows, bits).dequantized() - rows).max()) for bits in BITS]
    assert errors[0] < errors[1] / 10


@pytest.mark.parametrize(
    ("columns", "of_eight_bits", "of_four_bits"),
    [(64, 64, 32), (128, 128, 32), (192, 64, 32), (1024, 128, 32), (3520, 64, 32), (32, 0, 0), (96, 0, 0), (80, 0, 0)],
)
def test_blocks_are_the_largest_that_divide_a_row(columns: int, of_eight_bits: int, of_four_bits: int) -> None:
    assert block_columns(8, columns) == of_eight_bits
    assert block_columns(4, columns) == of_four_bits
