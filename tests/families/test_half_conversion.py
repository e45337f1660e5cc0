"""Conversion by table gives the bits that conversion through float32 gives, for every value of 16 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rowpack.graph.dtypes import numpy_dtype
from rowpack.half_conversion import converted_halves, converts

KINDS = ("float16", "bfloat16")


def every_value(dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(numpy_dtype(dtype))


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_every_value_that_fits_has_the_bits_of_the_direct_conversion(source: str, target: str) -> None:
    values = every_value(source)
    with np.errstate(over="ignore", invalid="ignore"):
        direct = values.astype(np.float32).astype(numpy_dtype(target))
    fits = np.isfinite(direct.astype(np.float32))
    converted = converted_halves(values[fits].reshape(2, -1), target)
    assert converted is not None
    assert converted.dtype == numpy_dtype(target)
    np.testing.assert_array_equal(converted.view(np.uint16).ravel(), direct[fits].view(np.uint16))


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_left_to_whoever_asks(source: str, target: str, value: float) -> None:
    values = np.ones((3, 4), numpy_dtype(source))
    values[2, 1] = value
    assert converted_halves(values, target) is None


def test_what_does_not_fit_is_left_to_whoever_asks() -> None:
    assert converted_halves(np.array([65520.0], ml_dtypes.bfloat16), "float16") is None
    assert converted_halves(np.array([65280.0], ml_dtypes.bfloat16), "float16") is not None


def test_rows_that_do_not_lie_one_after_the_other_are_converted() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)
    converted = converted_halves(values.T, "float16")
    assert converted is not None
    np.testing.assert_array_equal(converted, np.arange(12, dtype=np.float16).reshape(3, 4).T)


def test_only_halves_are_converted() -> None:
    assert not converts(np.ones(1, np.float32), "float16")
    assert not converts(np.ones(1, np.float16), "float32")
    assert not converts(np.ones(1, np.float16), "float8_e4m3fn")


def test_no_rows_are_no_rows() -> None:
    converted = converted_halves(np.empty((0, 4), np.float16), "bfloat16")
    assert converted is not None and converted.shape == (0, 4)
