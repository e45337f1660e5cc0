"""Store large projections in small floats: which tensors, and how their rows become values and scales.

``fp8``: E4M3 values, each row of a projection ``[out, in]`` with a scale of its own in the work dtype.
``nvfp4``: E2M1 values of rows divided by their largest magnitude, with an E4M3 scale for every 16 of a row; the
magnitudes are kept in the work dtype (surgery/float4_form.py says what that is good for).

``int8``, ``int4`` and ``w8a8``: weights in whole numbers, for processors (integer_quantization.py).

Each way a row is quantised by itself, so rows can be quantised as they stream by. What enters the products is rounded
at run time, row by row (surgery/quantized_projections.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rowpack.families.declaration import ModelDescription, Transform, WeightSpec
from rowpack.graph.dtypes import numpy_dtype
from rowpack.integer_quantization import INT4 as INT4
from rowpack.integer_quantization import INT8 as INT8
from rowpack.integer_quantization import INTEGER_QUANTIZATIONS as INTEGER_QUANTIZATIONS
from rowpack.integer_quantization import PACKED_QUANTIZATIONS as PACKED_QUANTIZATIONS
from rowpack.integer_quantization import W8A8 as W8A8
from rowpack.integer_quantization import quantize_to_integers
from rowpack.integer_quantization import scale_name as scale_name
from rowpack.surgery.float4_form import BLOCK_COLUMNS, GLOBAL_SCALE, LARGEST_FLOAT4, Float4Form
from rowpack.surgery.float8_form import LARGEST_FLOAT8, Float8Form
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    from rowpack.surgery.quantized_projections import QuantizedForm

FP8 = "fp8"
NVFP4 = "nvfp4"

QUANTIZATIONS = (FP8, NVFP4, *INTEGER_QUANTIZATIONS)

NOT_QUANTIZED = "none"
TABLE_QUANTIZATIONS = (NOT_QUANTIZED, *INTEGER_QUANTIZATIONS)
"""How output projection and embedding may be stored beside projections in whole numbers."""

VALUE_DTYPES = {FP8: "float8_e4m3fn", NVFP4: "float4_e2m1fn"}

HALF_PRECISIONS = ("fp16", "bf16")

_INTEGER_BACKENDS = ("ort",)
_SMALL_FLOAT_BACKENDS = ("trt_rtx", "trt")

Rows = np.ndarray[Any, Any]


def magnitude_name(name: str) -> str:
    """Return the name of the largest magnitudes of the rows of the tensor ``name`` (nvfp4)."""
    return f"{name}_magnitude"


def check_quantization(
    quantization: str | None,
    precision: str,
    head_quantization: str | None = None,
    embedding_quantization: str | None = None,
    *,
    backend: str = "ort",
) -> None:
    """Refuse what is no quantization, and one that does not go with the work precision.

    Remedies stay with ``backend`` where it can run what they advise. Raises RowpackError ``quantization_unknown``,
    ``quantization_precision``, ``head_quantization_unsupported`` or ``embedding_quantization_unsupported``.
    """
    for option, found, known in (
        ("--quantization", quantization, QUANTIZATIONS),
        ("--head-quantization", head_quantization, TABLE_QUANTIZATIONS),
        ("--embedding-quantization", embedding_quantization, TABLE_QUANTIZATIONS),
    ):
        if found is not None and found not in known:
            raise RowpackError(
                "quantization_unknown",
                "there is no such quantization",
                where=option,
                found=repr(found),
                expected=", ".join(known),
                remedy=f"Name one of these, or leave {option} out.",
            )
    if head_quantization is not None and quantization not in INTEGER_QUANTIZATIONS:
        raise RowpackError(
            "head_quantization_unsupported",
            "the output projection is quantised beside projections in whole numbers only",
            where="--head-quantization",
            found=f"{head_quantization} with --quantization {quantization or 'left out'}",
            expected=" or ".join(f"--quantization {word}" for word in INTEGER_QUANTIZATIONS),
            remedy=f"Leave --head-quantization out, or build with {quantized_build(INT8)}.",
        )
    if embedding_quantization is not None and quantization not in INTEGER_QUANTIZATIONS:
        raise RowpackError(
            "embedding_quantization_unsupported",
            "the embedding is quantised beside projections in whole numbers only",
            where="--embedding-quantization",
            found=f"{embedding_quantization} with --quantization {quantization or 'left out'}",
            expected=" or ".join(f"--quantization {word}" for word in INTEGER_QUANTIZATIONS),
            remedy=f"Leave --embedding-quantization out, or build with {quantized_build(INT8)}.",
        )
    if quantization is None:
        return
    if quantization in INTEGER_QUANTIZATIONS and precision != "fp32":
        raise RowpackError(
            "quantization_precision",
            "projections in whole numbers stand in float32 engines only",
            where="--precision",
            found=precision,
            expected="fp32",
            remedy=f"Build with {quantized_build(quantization)}: its weights are as small in either precision.",
        )
    if quantization not in INTEGER_QUANTIZATIONS and precision not in HALF_PRECISIONS:
        raise RowpackError(
            "quantization_precision",
            "projections in small floats stand in half-precision engines only",
            where="--precision",
            found=precision,
            expected=" or ".join(HALF_PRECISIONS),
            remedy=f"Build with {quantized_build(quantization, backend=backend)}.",
        )


def quantized_build(quantization: str, *, backend: str = "ort", precision: str | None = None) -> str:
    """Return the options, as the command line has them, of a build with projections in ``quantization``.

    Backend and precision are those given where they can run it.
    """
    whole = quantization in INTEGER_QUANTIZATIONS
    backends = _INTEGER_BACKENDS if whole else _SMALL_FLOAT_BACKENDS
    precisions = ("fp32",) if whole else ("bf16", "fp16")
    words = (
        f"--backend {backend if backend in backends else backends[0]}",
        f"--precision {precision if precision in precisions else precisions[0]}",
        f"--quantization {quantization}",
    )
    return " ".join(words)


def stored_head(quantization: str | None, head_quantization: str | None) -> str | None:
    """Return in what the output projection is stored: by default as the projections; None where it is not quantised."""
    if quantization not in INTEGER_QUANTIZATIONS:
        return None
    word = head_quantization or quantization
    return None if word == NOT_QUANTIZED else word


def stored_embedding(embedding_quantization: str | None) -> str | None:
    """Return in what the embedding is stored; None, also by default, where it is not quantised."""
    return None if embedding_quantization == NOT_QUANTIZED else embedding_quantization


def quantize(
    model: ModelDescription,
    quantization: str,
    head_quantization: str | None = None,
    checkpoint_dtypes: Mapping[str, str] | None = None,
    *,
    embedding_quantization: str | None = None,
) -> ModelDescription:
    """Return ``model`` with every quantizable projection stored as ``quantization`` says, scales beside it.

    A projection whose rows are no whole number of blocks stays as it is. ``checkpoint_dtypes`` maps the checkpoint's
    tensors to their dtypes in safetensors codes.
    """
    if quantization in INTEGER_QUANTIZATIONS:
        return quantize_to_integers(
            model,
            quantization,
            stored_head(quantization, head_quantization),
            stored_embedding(embedding_quantization),
            checkpoint_dtypes or {},
        )
    make = {FP8: _float8, NVFP4: _float4}[quantization]
    return replace(model, weights=tuple(_quantized(model.weights, make)))


def quantized_tensors(model: ModelDescription) -> tuple[str, ...]:
    """Return the names of the projections of ``model`` that are stored quantised."""
    stored = [spec for spec in model.weights if spec.dtype in VALUE_DTYPES.values()]
    return tuple(spec.name for spec in stored if not spec.derived)


def quantized_form(model: ModelDescription, weights: Mapping[str, Any], work: str) -> QuantizedForm | None:
    """Return how the quantised projections of ``model`` look in a graph, or None when it has none.

    ``weights`` maps tensor names to the graph's constants.
    """
    names = quantized_tensors(model)
    if not names:
        return None
    scales = {name: weights[scale_name(name)] for name in names}
    if {spec.dtype for spec in model.weights} & {VALUE_DTYPES[NVFP4]}:
        return Float4Form(scales, {name: weights[magnitude_name(name)] for name in names}, work)
    return Float8Form(scales, work)


def _quantized(specs: tuple[WeightSpec, ...], make: Callable[[WeightSpec], list[WeightSpec]]) -> Iterator[WeightSpec]:
    for spec in specs:
        if spec.quantizable:
            yield from make(spec)
        else:
            yield spec


def _float8(spec: WeightSpec) -> list[WeightSpec]:
    def scales(rows: Rows) -> Rows:
        return rounded_up(np.abs(rows).max(axis=1) / np.float32(LARGEST_FLOAT8), spec.dtype)

    return [
        replace(spec, dtype=VALUE_DTYPES[FP8], transform=_after(spec, lambda rows: rows / scales(rows)[:, None])),
        _beside(spec, scale_name(spec.name), spec.dtype, spec.shape[:1], scales),
    ]


def _float4(spec: WeightSpec) -> list[WeightSpec]:
    if spec.shape[1] % BLOCK_COLUMNS:
        return [spec]

    def magnitudes(rows: Rows) -> Rows:
        return rounded_up(np.abs(rows).max(axis=1), spec.dtype)

    def blocks(rows: Rows) -> tuple[Rows, Rows]:
        """Return rows in [−1, 1] as ``[rows, blocks, 16]``, and the scale of each block as E4M3 holds it."""
        unit = (rows / magnitudes(rows)[:, None]).reshape(rows.shape[0], -1, BLOCK_COLUMNS)
        exact = np.abs(unit).max(axis=2) / np.float32(LARGEST_FLOAT4 * GLOBAL_SCALE)
        return unit, exact.astype(numpy_dtype("float8_e4m3fn")).astype(np.float32)

    def values(rows: Rows) -> Rows:
        unit, scales = blocks(rows)
        steps = (scales * np.float32(GLOBAL_SCALE))[..., None]
        # A block whose scale E4M3 rounds to zero is nothing beside the largest of its row.
        scaled = np.divide(unit, steps, out=np.zeros_like(unit), where=steps > 0)
        return np.clip(scaled, -LARGEST_FLOAT4, LARGEST_FLOAT4).reshape(rows.shape)

    block_shape = (spec.shape[0], spec.shape[1] // BLOCK_COLUMNS)
    return [
        replace(spec, dtype=VALUE_DTYPES[NVFP4], transform=_after(spec, values)),
        _beside(spec, scale_name(spec.name), "float8_e4m3fn", block_shape, lambda rows: blocks(rows)[1]),
        _beside(spec, magnitude_name(spec.name), spec.dtype, spec.shape[:1], magnitudes),
    ]


def _beside(
    spec: WeightSpec, name: str, dtype: str, shape: tuple[int, ...], transform: Callable[[Rows], Rows]
) -> WeightSpec:
    """Declare what is stored beside the values of ``spec``, made of the same rows."""
    return replace(
        spec,
        name=name,
        dtype=dtype,
        shape=shape,
        transform=_after(spec, transform),
        quantizable=False,
        derived=True,
    )


def _after(spec: WeightSpec, then: Callable[[Rows], Rows]) -> Transform:
    """Return a transform that follows the family's own."""
    before = spec.transform

    def transformed(rows: Rows) -> Rows:
        return then(rows if before is None else before(rows))

    return transformed


def rounded_up(exact: Rows, work: str) -> Rows:
    """Return positive float32 values as the half-precision type ``work`` holds them, none smaller than it was.

    A scale that is too small would cut the largest value off. Zero becomes the smallest number there is.
    """
    kind = numpy_dtype(work)
    scales = exact.astype(kind)
    too_small = scales.astype(np.float32) < exact
    following = (scales.view(np.uint16) + np.uint16(1)).view(kind)
    smallest = np.array(1, np.uint16).view(kind)
    chosen: Rows = np.where(exact > 0, np.where(too_small, following, scales), smallest).astype(np.float32)
    return chosen
