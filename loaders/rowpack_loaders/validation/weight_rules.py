"""Rules about the weight section: a whole safetensors file whose tensors are those the manifest counts."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.safetensors_header import LENGTH_BYTES, TensorEntry, data_start, parse_header
from rowpack_loaders.validation.subject import Finding, Rule, Subject

WEIGHTS_SECTION = "weights.safetensors"


def weight_section_has_its_name(subject: Subject) -> Iterator[Finding]:
    """The weights are in the section that the external data of ONNX engines name."""
    weights = subject.manifest_fields.optional_child("weights")
    if weights is not None and weights.text("section") != WEIGHTS_SECTION:
        yield Problem(
            "weights_section_unexpected",
            "The weights are not in the section where engines and loaders look for them",
            where=f"{MANIFEST_SECTION}#/weights/section",
            found=repr(weights.text("section")[:128]),
            expected=WEIGHTS_SECTION,
        )


def weights_match_manifest(subject: Subject) -> Iterator[Finding]:
    """The safetensors header is sound, covers the section, and has the tensors that the manifest counts."""
    weights = subject.manifest_fields.optional_child("weights")
    if weights is None or subject.section(weights.text("section")) is None:
        return
    tensors = _read_tensors(subject, weights.text("section"))
    subject.weight_tensors = tensors
    found = {
        "tensor_count": len(tensors),
        "tensor_bytes": sum(tensor.byte_count for tensor in tensors.values()),
    }
    for key, value in found.items():
        if weights.integer(key) != value:
            yield Problem(
                "weights_summary_mismatch",
                "The manifest's summary of the weights is not that of the section",
                where=f"{MANIFEST_SECTION}#/weights/{key}",
                found=str(weights.integer(key)),
                expected=str(value),
            )


def _read_tensors(subject: Subject, name: str) -> dict[str, TensorEntry]:
    place = subject.container.section_range(name)
    prefix = subject.container.read_at(place.offset_bytes, min(LENGTH_BYTES, place.length_bytes))
    start = data_start(prefix, place.length_bytes, name)
    header = subject.container.read_at(place.offset_bytes, start)
    return parse_header(header, total_bytes=place.length_bytes, where=name)


RULES: tuple[Rule, ...] = (weight_section_has_its_name, weights_match_manifest)
