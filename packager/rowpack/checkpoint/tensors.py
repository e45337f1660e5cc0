"""What is known of a stored tensor, and how its bytes become a numpy array.

Data types carry the names of the safetensors format (``BF16``, ``F32``, …) whatever file they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import numpy as np

READABLE_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Data types a weight may have, with their size in bytes."""

_NUMPY_NAMES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class TensorInfo:
    """Describe one tensor of a checkpoint: its name, data type, shape, length and the file it lies in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    byte_count: int
    file: str

    @property
    def row_count(self) -> int:
        """Number of rows along axis 0; a scalar counts as one row."""
        return self.shape[0] if self.shape else 1


@dataclass(frozen=True)
class StoredTensor:
    """Add to a tensor's description where its elements lie in its file.

    ``strides`` counts elements (never bytes) and is ``None`` for the ordinary row-major layout. Only torch
    pickles have others: a transposed or expanded view is saved as a view.
    """

    info: TensorInfo
    path: Path = field(repr=False)
    offset_bytes: int
    strides: tuple[int, ...] | None = None

    def row_span(self, start: int, stop: int) -> tuple[int, int]:
        """Return offset and length in bytes of the part of the file that holds rows ``[start, stop)``."""
        item_bytes = READABLE_DTYPES[self.info.dtype]
        row_shape = self.info.shape[1:]
        if self.strides is None:
            row_bytes = math.prod(row_shape) * item_bytes
            return self.offset_bytes + start * row_bytes, (stop - start) * row_bytes
        rows = stop - start
        if rows == 0 or 0 in row_shape:
            return self.offset_bytes, 0
        steps = zip((rows, *row_shape), self.strides, strict=True)
        elements = 1 + sum((count - 1) * stride for count, stride in steps)
        return self.offset_bytes + start * self.strides[0] * item_bytes, elements * item_bytes


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major tensor of this shape."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether these strides are the row-major ones; axes of length 1 may have any stride."""
    expected = row_major_strides(shape)
    return 0 in shape or all(
        count == 1 or stride == row_major for count, stride, row_major in zip(shape, strides, expected, strict=True)
    )


def numpy_dtype(dtype: str, where: str) -> np.dtype[Any]:
    """Return the numpy data type of a stored one; code ``unsupported_tensor_dtype`` when it holds no
    weights."""
    import numpy as np

    if dtype not in READABLE_DTYPES:
        raise RowpackError(
            "unsupported_tensor_dtype",
            "the tensor has a data type that weights are not read from",
            where=where,
            found=dtype,
            expected=", ".join(READABLE_DTYPES),
            remedy="Use a checkpoint that is not quantised",
        )
    if dtype == "BF16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY_NAMES[dtype])
