"""Convert between the two 16-bit float types by looking every value up.

There are 65,536 values of 16 bits. NumPy's conversion of float32 to float16 takes several nanoseconds a value, and a
hundred where the result is subnormal; a table of all conversions, made by that very conversion, takes a third of it
and gives the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from rowpack.graph.dtypes import numpy_dtype

_EXPONENT_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""Where all of them are set, the value is infinite or no number."""

_HALVES = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}


def converts(rows: np.ndarray[Any, Any], dtype: str) -> bool:
    """Tell whether :func:`converted_halves` takes these values and this type."""
    return dtype in _EXPONENT_BITS and rows.dtype in _HALVES


def converted_halves(rows: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | None:
    """Return 16-bit ``rows`` as ``dtype`` (``float16`` or ``bfloat16``), contiguous, rounded to nearest.

    None when a value is not finite, or does not fit: whoever asks finds out which.
    """
    kind = numpy_dtype(dtype)
    bits = np.ascontiguousarray(rows).view(np.uint16)
    if rows.dtype != kind:
        bits = _table(rows.dtype, kind)[bits]
    exponent = np.uint16(_EXPONENT_BITS[dtype])
    if bits.size and (bits & exponent).max() == exponent:
        return None
    converted: np.ndarray[Any, Any] = bits.view(kind)
    return converted


@cache
def _table(source: np.dtype[Any], target: np.dtype[Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    values = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(source).astype(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return values.astype(target).view(np.uint16)
