"""The weight section: where each tensor lies, and its bytes streamed from the checkpoint piece by piece.

Resident memory stays at one piece (a few tens of MB) whatever the model's size: rows are read, widened, transformed,
narrowed and handed on; nothing keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from rowpack.families.declaration import WeightSource, WeightSpec
from rowpack.graph.dtypes import numpy_dtype, safetensors_code, stored_bits, stored_values
from rowpack.half_conversion import converted_halves, converts
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.safetensors_header import build_header

WEIGHTS_SECTION = "weights.safetensors"

PIECE_BYTES = 16 * 1024 * 1024
"""Target size of one streamed piece in float32."""


class RowReader(Protocol):
    """What is needed of a checkpoint: rows of a tensor by name."""

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows ``start:stop`` of axis 0."""
        ...


@dataclass(frozen=True)
class PlacedWeight:
    """One tensor and the place of its bytes, counted from the start of the weight section."""

    spec: WeightSpec
    offset_bytes: int
    byte_count: int


@dataclass(frozen=True)
class WeightPlan:
    """The whole weight section before a single byte of it is written."""

    header: bytes
    tensors: tuple[PlacedWeight, ...]

    @property
    def section_bytes(self) -> int:
        """Length of the section: header and tensors."""
        return len(self.header) + self.tensor_bytes

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.byte_count for tensor in self.tensors)


def plan_weights(specs: Sequence[WeightSpec]) -> WeightPlan:
    """Place every tensor; float32 tensors come first, so that each tensor is aligned to its own element size."""
    ordered = sorted(specs, key=lambda spec: -stored_bits(spec.dtype))
    header = build_header(
        (spec.name, safetensors_code(spec.dtype), spec.stored_shape or spec.shape) for spec in ordered
    )
    placed = []
    offset = len(header)
    for spec in ordered:
        byte_count = stored_bits(spec.dtype) * math.prod(spec.shape) // 8
        placed.append(PlacedWeight(spec, offset, byte_count))
        offset += byte_count
    return WeightPlan(header, tuple(placed))


def stream_weights(plan: WeightPlan, reader: RowReader) -> Iterator[bytes | memoryview]:
    """Yield the section's bytes in order.

    Raises RowpackError ``weight_not_finite`` for NaN or infinity in the checkpoint and ``weight_overflow`` when a
    value does not fit the narrower type; both name the tensor and the value.
    """
    yield plan.header
    for placed in plan.tensors:
        for source in placed.spec.sources:
            for rows in _pieces(source, reader):
                yield stored_values(_converted(placed.spec, source, rows), placed.spec.dtype).data


def largest_piece_bytes(plan: WeightPlan) -> int:
    """Return the bytes of the largest piece in float32, of whatever tensor."""
    return max(
        4 * math.prod(source.shape[1:]) * min(source.shape[0], _rows_of_a_piece(source))
        for placed in plan.tensors
        for source in placed.spec.sources
    )


def read_weights(plan: WeightPlan, reader: RowReader) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return every tensor in memory; for small models and tests only."""
    tensors = {}
    for placed in plan.tensors:
        parts = [
            _converted(placed.spec, source, rows) for source in placed.spec.sources for rows in _pieces(source, reader)
        ]
        tensors[placed.spec.name] = np.concatenate(parts).reshape(placed.spec.shape)
    return tensors


def _pieces(source: WeightSource, reader: RowReader) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the source's rows in pieces of about PIECE_BYTES float32 bytes."""
    step = _rows_of_a_piece(source)
    for start in range(0, source.shape[0], step):
        yield reader.read_rows(source.tensor, start, min(start + step, source.shape[0]))


def _rows_of_a_piece(source: WeightSource) -> int:
    return max(1, PIECE_BYTES // max(4 * math.prod(source.shape[1:]), 1))


def _converted(spec: WeightSpec, source: WeightSource, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return ``rows`` transformed and in the bundle's element type, contiguous."""
    if spec.transform is None and converts(rows, spec.dtype):
        halves = converted_halves(rows, spec.dtype)
        if halves is not None:
            return halves
    # What overflows is reported below with the tensor's name.
    with np.errstate(over="ignore"):
        wide = rows.astype(np.float32)
        if not np.isfinite(wide).all():
            raise _overflow(source, rows, "float32") if np.isfinite(rows).all() else _not_finite(source, wide)
        stored = wide
        if spec.transform is not None:
            stored = np.ascontiguousarray(spec.transform(wide), dtype=np.float32)
        if spec.dtype != "float32":
            stored = stored.astype(numpy_dtype(spec.dtype))
    if stored is not wide and not np.isfinite(stored).all():
        raise _overflow(source, wide, spec.dtype)
    return stored


def _not_finite(source: WeightSource, values: np.ndarray[Any, Any]) -> RowpackError:
    return RowpackError(
        "weight_not_finite",
        "a weight is not a finite number",
        where=source.tensor,
        found=str(values[~np.isfinite(values)].ravel()[0]),
        expected="finite values",
        remedy="The checkpoint is damaged or was saved from a diverged run; fetch it again.",
    )


def _overflow(source: WeightSource, values: np.ndarray[Any, Any], dtype: str) -> RowpackError:
    limit = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    wider = "Build with --precision fp32, which all backends run; if that does not help, the checkpoint is damaged."
    damaged = "The checkpoint is damaged or was saved from a diverged run; fetch it again."
    return RowpackError(
        "weight_overflow",
        "a weight does not fit the type it is stored in",
        where=source.tensor,
        found=f"{float(np.abs(values).max()):g} as its largest magnitude",
        expected=f"at most {limit:g} in {dtype}",
        remedy=damaged if dtype == "float32" else wider,
    )
