"""Value transforms of weight tables that more than one family uses: float32 rows in, float32 rows out."""

from __future__ import annotations

from typing import Any

import numpy as np

from rowpack.exact_rounding import exponential


def negative_exponential(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return −exp(x): both families store a decay as the logarithm of its magnitude."""
    return -exponential(values)
