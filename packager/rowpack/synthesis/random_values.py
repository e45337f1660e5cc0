"""Draw the values of random tensors as a stream of small blocks.

A value is one of 65,536 quantiles of its distribution, chosen by 16 random bits. So every element is drawn
for itself (matrices have full rank, no row repeats), drawing is a table look-up whatever the distribution,
and memory does not grow with the tensor. The bits come from the SFC64 generator seeded with the
checkpoint's seed and the tensor's name, so a tensor's values do not depend on what else is written nor, for
Qwen3.5, on the outer layout.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from statistics import NormalDist
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

StoredDtype = Literal["BF16", "F16", "F32"]

NUMPY_DTYPES: dict[StoredDtype, np.dtype[np.generic]] = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
}

BLOCK_ELEMENTS = 1 << 20
_LEVELS = 1 << 16


@dataclass(frozen=True)
class Normal:
    """Describe normally distributed values around 0; nothing lies beyond 4.3 standard deviations."""

    standard_deviation: float

    def quantiles(self) -> npt.NDArray[np.float64]:
        """Return the 65,536 equally likely values, in rising order."""
        return _standard_normal_quantiles() * self.standard_deviation


@dataclass(frozen=True)
class Uniform:
    """Describe values spread evenly over ``[low, high]``."""

    low: float
    high: float

    def quantiles(self) -> npt.NDArray[np.float64]:
        """Return the 65,536 equally likely values, in rising order."""
        return np.linspace(self.low, self.high, _LEVELS)


@dataclass(frozen=True)
class RandomTensor:
    """Name a tensor, its shape and how its values are spread."""

    name: str
    shape: tuple[int, ...]
    values: Normal | Uniform

    @property
    def element_count(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> RandomTensor:
    """Describe a weight [rows, columns] that keeps the scale of its input: deviation ``gain /
    sqrt(columns)``."""
    return RandomTensor(name, (rows, columns), Normal(gain / columns**0.5))


def _name_without_layout(name: str) -> str:
    """Return the name that a tensor of the text model has in the flat layout."""
    return name.replace("model.language_model.", "model.", 1)


def stream_values(tensor: RandomTensor, dtype: StoredDtype, seed: int) -> Iterator[memoryview]:
    """Yield the tensor's little-endian bytes in blocks of at most 4 MiB."""
    target = NUMPY_DTYPES[dtype]
    table = tensor.values.quantiles().astype(np.float32).astype(target)
    # Looking up whole words keeps numpy on its fast path: bfloat16 is no type of its own.
    words = table.view(np.dtype(f"<u{target.itemsize}"))
    generator = np.random.SFC64([seed, zlib.crc32(_name_without_layout(tensor.name).encode())])
    for start in range(0, tensor.element_count, BLOCK_ELEMENTS):
        count = min(BLOCK_ELEMENTS, tensor.element_count - start)
        bits = generator.random_raw(-(-count // 4)).view(np.uint16)[:count]
        yield words[bits].data.cast("B")


@cache
def _standard_normal_quantiles() -> npt.NDArray[np.float64]:
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((level + 0.5) / _LEVELS) for level in range(_LEVELS // 2, _LEVELS)])
    return np.concatenate([-upper[::-1], upper])
