"""Weights in whole numbers: which tensors become that, and the same model with what they stand for.

``int8`` and ``int4``: in blocks of a row's columns. ``w8a8``: eight bits, with one scale a row, so that a product can
be computed in whole numbers throughout where the rows that enter it are rounded alike.

The projections that a family declares quantizable are stored as codes, scales and zero points; gates, decays,
convolutions, norms and recurrent parameters never are. The output projection and the embedding are quantised by
choice. Where the two are one tensor and are to be stored alike, they stay one; otherwise the head becomes a tensor of
its own. An embedding that is not quantised, of which a step looks up one row, is stored as the checkpoint has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rowpack.block_quantization import (
    MOST_ROW_COLUMNS,
    QuantizedBlocks,
    Rows,
    block_columns,
    quantize_blocks,
    quantize_rows,
)
from rowpack.families.declaration import ModelDescription, Transform, WeightSpec

INT8 = "int8"
INT4 = "int4"
W8A8 = "w8a8"

PACKED_QUANTIZATIONS = (INT8, INT4)
"""Those whose products are fast only after the runtime has packed the weights."""

INTEGER_QUANTIZATIONS = (*PACKED_QUANTIZATIONS, W8A8)

_BITS = {INT8: 8, INT4: 4}

_CODE_DTYPES = {8: "uint8", 4: "uint4"}

_HALF_DTYPES = ("float16", "bfloat16")

_STORED_LOOKUP_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def scale_name(name: str) -> str:
    """Return the name of the scales of the tensor ``name``."""
    return f"{name}_scale"


def zero_point_name(name: str) -> str:
    """Return the name of the zero points of the tensor ``name``."""
    return f"{name}_zero_point"


@dataclass(frozen=True)
class QuantizedPart:
    """A transform that follows the family's own (``before``), quantises the rows, and keeps what ``choose`` takes."""

    before: Transform | None
    quantize: Callable[[Rows], QuantizedBlocks]
    choose: Callable[[QuantizedBlocks], Rows]

    def __call__(self, rows: Rows) -> Rows:
        """Return one part of the quantised rows."""
        return self.choose(self.quantize(rows if self.before is None else self.before(rows)))


def quantize_to_integers(
    model: ModelDescription,
    quantization: str,
    head: str | None,
    embedding: str | None,
    checkpoint_dtypes: Mapping[str, str],
) -> ModelDescription:
    """Return ``model`` with every quantizable projection stored in ``quantization``, head and embedding in their own.

    None leaves either as it is, and so do rows that are no whole blocks. ``checkpoint_dtypes`` maps the checkpoint's
    tensors to their dtypes in safetensors codes.
    """
    specs: list[WeightSpec] = []
    for spec in model.weights:
        if spec.part == "embedding":
            specs += _embedding(spec, model, head, embedding, checkpoint_dtypes)
        elif spec.part == "head" and head is not None:
            specs += _stored(spec, head)
        elif spec.quantizable:
            specs += _stored(spec, quantization)
        else:
            specs.append(spec)
    return replace(model, weights=tuple(specs))


def dequantized(model: ModelDescription) -> ModelDescription:
    """Return ``model`` with float32 tensors of what its quantised ones stand for, and no scales beside them."""
    names = set(quantized_names(model))
    beside = {make(name) for name in names for make in (scale_name, zero_point_name)}
    specs = []
    for spec in model.weights:
        if spec.name in names and isinstance(spec.transform, QuantizedPart):
            restored = replace(spec.transform, choose=QuantizedBlocks.dequantized)
            specs.append(replace(spec, dtype="float32", transform=restored, stored_shape=None))
        elif spec.name not in beside:
            specs.append(spec)
    return replace(model, weights=tuple(specs))


def quantized_names(model: ModelDescription) -> Iterator[str]:
    """Yield the names of the tensors that are stored as whole numbers."""
    stored = {spec.name for spec in model.weights}
    for spec in model.weights:
        if spec.dtype in _CODE_DTYPES.values() and scale_name(spec.name) in stored:
            yield spec.name


def multiplied_names(model: ModelDescription) -> Iterator[str]:
    """Yield the names of the quantised tensors that rows are multiplied with: all but an embedding that is no head."""
    has_head = any(spec.part == "head" for spec in model.weights)
    looked_up = {spec.name for spec in model.weights if spec.part == "embedding" and has_head}
    yield from (name for name in quantized_names(model) if name not in looked_up)


def packed_names(model: ModelDescription) -> Iterator[str]:
    """Yield the names of those that are stored in blocks, whose products a runtime packs."""
    shapes = {spec.name: spec.shape for spec in model.weights}
    yield from (name for name in multiplied_names(model) if len(shapes[scale_name(name)]) > 1)


def rounded_blocks(model: ModelDescription) -> dict[str, int]:
    """Return the columns of a block of each weight that rows are multiplied with; rows are rounded in the same."""
    shapes = {spec.name: spec.shape for spec in model.weights}
    columns = {name: shapes[name][1] for name in multiplied_names(model)}
    return {name: count // math.prod(shapes[scale_name(name)][1:]) for name, count in columns.items()}


def half_precision_tables(model: ModelDescription, work: str) -> frozenset[str]:
    """Return the names of the embeddings that are narrower than the work dtype."""
    tables = (spec for spec in model.weights if spec.part == "embedding")
    return frozenset(spec.name for spec in tables if spec.dtype != work and spec.dtype in _HALF_DTYPES)


def _embedding(
    spec: WeightSpec,
    model: ModelDescription,
    head: str | None,
    embedding: str | None,
    checkpoint_dtypes: Mapping[str, str],
) -> list[WeightSpec]:
    """Return the table, and the head beside it where the two were one and are stored in different ways."""
    tied = all(other.part != "head" for other in model.weights)
    if not block_columns(4, spec.shape[1]):
        return [spec] if tied else [_as_in_the_checkpoint(spec, checkpoint_dtypes)]
    if tied and head == embedding:
        return [spec] if head is None else _stored(spec, head)
    table = [_as_in_the_checkpoint(spec, checkpoint_dtypes)] if embedding is None else _stored(spec, embedding)
    if not tied:
        return table
    beside = replace(spec, name=model.head_name, part="head")
    return [*table, *(replace(part, derived=True) for part in ([beside] if head is None else _stored(beside, head)))]


def _as_in_the_checkpoint(spec: WeightSpec, checkpoint_dtypes: Mapping[str, str]) -> WeightSpec:
    """Return ``spec`` in the dtype of its sources, if they have one that rows can be looked up in."""
    dtypes = {checkpoint_dtypes.get(source.tensor, "F32") for source in spec.sources}
    dtype = _STORED_LOOKUP_DTYPES.get(dtypes.pop(), spec.dtype) if len(dtypes) == 1 else spec.dtype
    return replace(spec, dtype=dtype)


def _stored(spec: WeightSpec, quantization: str) -> list[WeightSpec]:
    """Return what is stored in place of ``spec``: codes, scales, and for blocks zero points."""
    return _stored_rows(spec) if quantization == W8A8 else _stored_blocks(spec, _BITS[quantization])


def _stored_blocks(spec: WeightSpec, bits: int) -> list[WeightSpec]:
    rows, columns = spec.shape
    block = block_columns(bits, columns)
    if not block:
        return [spec]
    blocks = columns // block
    codes = QuantizedPart(spec.transform, partial(quantize_blocks, bits=bits), lambda quantized: quantized.codes)
    beside = replace(spec, shape=(rows, blocks), quantizable=False, derived=True)
    return [
        replace(spec, dtype=_CODE_DTYPES[bits], transform=codes, stored_shape=(rows, blocks, block * bits // 8)),
        replace(
            beside,
            name=scale_name(spec.name),
            transform=replace(codes, choose=lambda quantized: quantized.scales),
        ),
        replace(
            beside,
            name=zero_point_name(spec.name),
            dtype=_CODE_DTYPES[bits],
            transform=replace(codes, choose=lambda quantized: quantized.zero_points),
            stored_shape=(rows, blocks * bits // 8),
        ),
    ]


def _stored_rows(spec: WeightSpec) -> list[WeightSpec]:
    """Return codes and scales; all zero points are ``ROW_ZERO_POINT``."""
    rows, columns = spec.shape
    if columns > MOST_ROW_COLUMNS:
        return [spec]
    codes = QuantizedPart(spec.transform, quantize_rows, lambda quantized: quantized.codes)
    scales = replace(
        spec,
        name=scale_name(spec.name),
        shape=(rows,),
        transform=replace(codes, choose=lambda quantized: quantized.scales[:, 0]),
        quantizable=False,
        derived=True,
        # A column, as the results of a product have one for each row that enters.
        stored_shape=(rows, 1),
    )
    return [replace(spec, dtype=_CODE_DTYPES[8], transform=codes), scales]
