"""Exponentials and powers rounded correctly to float32: the same bits on every processor.

NumPy chooses its vector code by the processor it runs on, and its float32 exponential differs in the last bit between
them; weights made with it would differ from machine to machine. A float64 result is good to far more digits than
float32 has, so its rounding is certain unless it lies next to the middle between two float32 values; those few are
decided with fifty digits.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

_MARGIN = 2.0**-48
"""Far more than any library's float64 exponential or power is off by, relative to the result (2^-52 is one unit)."""

_DIGITS = Context(prec=50)
_BEYOND_FLOAT32 = Decimal(2) ** 128


def exponential(values: npt.NDArray[Any]) -> Float32Array:
    """Return exp(x) of float32 values, correctly rounded; what is too large becomes infinity."""
    wide = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        return _rounded(np.exp(wide), lambda index: _DIGITS.exp(Decimal(float(wide.flat[index]))))


def power(base: float, exponents: npt.NDArray[Any]) -> Float32Array:
    """Return base^x of float32 exponents, correctly rounded; ``base`` is positive."""
    wide = np.asarray(exponents, dtype=np.float64)
    with np.errstate(over="ignore"):
        return _rounded(
            np.power(np.float64(base), wide),
            lambda index: _DIGITS.power(Decimal(base), Decimal(float(wide.flat[index]))),
        )


def _rounded(approximate: npt.NDArray[np.float64], exact: Callable[[int], Decimal]) -> Float32Array:
    """Return ``approximate`` in float32; ``exact`` gives the value at a flat index where rounding is not certain."""
    low = np.asarray(approximate * (1 - _MARGIN), dtype=np.float32)
    high = np.asarray(approximate * (1 + _MARGIN), dtype=np.float32)
    result = low.copy()
    for index in np.flatnonzero(low != high):
        below, above = (_decimal(bound.flat[index]) for bound in (low, high))
        if exact(int(index)) > (below + above) / 2:
            result.flat[index] = high.flat[index]
    return result


def _decimal(value: np.float32) -> Decimal:
    # Infinity stands where the next float32 value would be.
    return Decimal(float(value)) if np.isfinite(value) else _BEYOND_FLOAT32
