"""Check that an ONNX section takes its weights from the weight section and from nowhere else.

External data can name any file, and any offset in it: a reference is honoured only when it is exactly one tensor of the
weight section, under the same name and with the same dtype and shape. So every reader sees the same weights, whether it
takes them by name or by place, and none reads a byte outside the section.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.onnx_interface import has_misplaced_external_data
from rowpack_loaders.onnx_wire import ExternalData, external_data
from rowpack_loaders.safetensors_header import TensorEntry

SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0",
    "F4": "float4_e2m1",
}
"""The dtypes of safetensors by the names that ONNX tensors have here."""


def reference_problems(
    references: Iterable[ExternalData], tensors: Mapping[str, TensorEntry], *, weights_section: str | None, where: str
) -> Iterator[Problem]:
    """Yield a problem for each reference that is not one tensor of the weight section.

    ``tensors`` are those of the section's header; without a section (None) there may be no references at all.
    """
    for reference in references:
        place = f"{where}: {reference.name[:128]}"
        if weights_section is None or reference.location != weights_section:
            yield Problem(
                "weight_reference_outside",
                "An engine takes data from elsewhere than the weight section",
                where=place,
                found=repr(reference.location[:128]),
                expected="no external data" if weights_section is None else weights_section,
                remedy="Do not load the file, unless you trust whoever made it",
            )
        elif reference.other_keys:
            yield Problem(
                "weight_reference_invalid",
                "The external data of a weight says more than where it lies",
                where=place,
                found=", ".join(reference.other_keys)[:200],
                expected="location, offset and length",
            )
        else:
            yield from _compare(reference, tensors.get(reference.name), place)


def check_weight_references(
    model: bytes, tensors: Mapping[str, TensorEntry], *, weights_section: str | None, where: str
) -> None:
    """Raise the first problem of the model's references, with all of them, before a runtime follows one.

    Raises :class:`RowpackError` ``onnx_malformed``, ``onnx_external_data_misplaced`` and the codes of
    :func:`reference_problems`.
    """
    references = external_data(model, where=where)
    problems = list(reference_problems(references, tensors, weights_section=weights_section, where=where))
    if has_misplaced_external_data(model, len(references), where=where):
        problems.append(misplaced_problem((), where))
    if problems:
        first = problems[0]
        raise RowpackError(
            first.code,
            first.message,
            where=first.where,
            found=first.found,
            expected=first.expected,
            remedy=first.remedy,
            problems=problems,
        )


def misplaced_problem(names: tuple[str, ...], where: str) -> Problem:
    """Return the problem of external data in other tensors than the main graph's initializers."""
    return Problem(
        "onnx_external_data_misplaced",
        "A tensor inside a node, a subgraph or a function takes its data from elsewhere",
        where=where,
        found=", ".join(repr(name[:80]) for name in names)[:400] or None,
        expected="external data of the main graph's initializers only",
        remedy="Do not load the file, unless you trust whoever made it",
    )


def _compare(reference: ExternalData, tensor: TensorEntry | None, place: str) -> Iterator[Problem]:
    if tensor is None:
        yield Problem(
            "weight_reference_unknown",
            "An engine refers to a tensor that the weight section does not have",
            where=place,
            found=f"bytes from {reference.offset_bytes}",
            expected="the name of a tensor of the weight section",
        )
        return
    named = (reference.offset_bytes, reference.length_bytes), (reference.dtype, reference.shape)
    held = (tensor.offset_bytes, tensor.byte_count), (SAFETENSORS_DTYPES.get(tensor.dtype, tensor.dtype), tensor.shape)
    if named != held:
        yield Problem(
            "weight_reference_mismatch",
            "An engine refers to a weight otherwise than the weight section holds it",
            where=place,
            found=_shown(*named),
            expected=_shown(*held),
            remedy="The engines and the weights are from different builds: build the bundle again",
        )


def _shown(place: tuple[int, int | None], form: tuple[str, tuple[int, ...]]) -> str:
    length = "bytes to the end" if place[1] is None else f"{place[1]} bytes"
    return f"{form[0]} {list(form[1])}, {length} from {place[0]}"[:200]
