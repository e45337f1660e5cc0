"""Store large projections in eight-bit floats: which tensors, and how their rows become values and scales.

E4M3 has three bits of mantissa and reaches 448. Each row of a projection ``[out, in]`` has a scale of its own, so a
weight is its stored value times the scale of its row, and rows can be quantised as they stream by. What enters the
product is scaled row by row at run time (surgery/quantized_projections.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rowpack.families.declaration import ModelDescription, Transform, WeightSpec
from rowpack.graph.dtypes import numpy_dtype
from rowpack_loaders.errors import RowpackError

FP8 = "fp8"

QUANTIZATIONS = (FP8,)

FLOAT8 = "float8_e4m3fn"

LARGEST_FLOAT8 = 448.0

HALF_PRECISIONS = ("fp16", "bf16")

_SCALE_SUFFIX = "_scale"


def scale_name(name: str) -> str:
    """Return the name of the scales of the tensor ``name``."""
    return name + _SCALE_SUFFIX


def check_quantization(quantization: str | None, precision: str) -> None:
    """Refuse what is no quantization, and one of a float32 model.

    Raises RowpackError ``quantization_unknown`` or ``quantization_precision``.
    """
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise RowpackError(
            "quantization_unknown",
            "there is no such quantization",
            where="--quantization",
            found=repr(quantization),
            expected=", ".join(QUANTIZATIONS),
        )
    if precision not in HALF_PRECISIONS:
        raise RowpackError(
            "quantization_precision",
            "quantised projections stand in half-precision engines only",
            where="--precision",
            found=precision,
            expected=" or ".join(HALF_PRECISIONS),
            remedy=f"Build with --precision bf16 --quantization {quantization}.",
        )


def quantized_tensors(model: ModelDescription) -> tuple[str, ...]:
    """Return the names of the projections of ``model`` that are stored quantised."""
    return tuple(spec.name for spec in model.weights if spec.dtype == FLOAT8)


def quantize(model: ModelDescription) -> ModelDescription:
    """Return ``model`` with every quantizable projection in E4M3 and a scale a row in the work dtype beside it."""
    return replace(model, weights=tuple(_quantized(model.weights)))


def _quantized(specs: tuple[WeightSpec, ...]) -> Iterator[WeightSpec]:
    for spec in specs:
        if not spec.quantizable:
            yield spec
            continue
        yield replace(spec, dtype=FLOAT8, transform=_values(spec.transform, spec.dtype))
        yield replace(
            spec,
            name=scale_name(spec.name),
            shape=spec.shape[:1],
            transform=_scales(spec.transform, spec.dtype),
            quantizable=False,
            derived=True,
        )


def row_scales(rows: np.ndarray[Any, Any], work: str) -> np.ndarray[Any, Any]:
    """Return the scale of each row as the work dtype holds it, widened to float32: no value exceeds E4M3 by it.

    Rounded up, where rounding is needed: a scale that is too small would cut the largest value off.
    """
    exact = np.abs(rows).max(axis=1) / np.float32(LARGEST_FLOAT8)
    kind = numpy_dtype(work)
    scales = exact.astype(kind)
    too_small = scales.astype(np.float32) < exact
    following = (scales.view(np.uint16) + np.uint16(1)).view(kind)
    scales = np.where(too_small, following, scales)
    smallest = np.array(1, np.uint16).view(kind)
    result: np.ndarray[Any, Any] = np.where(exact > 0, scales, smallest).astype(np.float32)
    return result


def _values(before: Transform | None, work: str) -> Transform:
    def quantised(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        values = rows if before is None else before(rows)
        scaled: np.ndarray[Any, Any] = values / row_scales(values, work)[:, None]
        return scaled

    return quantised


def _scales(before: Transform | None, work: str) -> Transform:
    def scales(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return row_scales(rows if before is None else before(rows), work)

    return scales
