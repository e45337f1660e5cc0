"""Compare two whole bundles: manifests part by part, then the sections that the digests tell apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rowpack.comparison.difference import PARTS, Difference, Pair
from rowpack.comparison.graphs import graph_differences
from rowpack.comparison.tokenizers import tokenizer_differences, tokenizer_sections
from rowpack.comparison.values import value_differences
from rowpack.comparison.weights import WEIGHTS_SECTION, weight_differences
from rowpack_loaders.bundle import Bundle, open_bundle
from rowpack_loaders.digests import PLACE_KEYS, content_digest
from rowpack_loaders.golden import unpack_golden
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.strict_json import parse_json_object

# The manifest's keys by the part that they belong to; sections and digests follow from the rest.
_MANIFEST_PARTS = {
    "producer": ("schema_version", "required_features", "producer", "origin"),
    "model": ("model",),
    "decision": ("decoder_engine_layout", "layout_decision", "runtime_json"),
    "engines": ("engines",),
    "states": ("states",),
    "weights": ("weights",),
    "limits": ("limits",),
    "tokens": ("tokens",),
    "tokenizer": ("tokenizer",),
    "self_test": ("self_test",),
}
_ENGINE_SECTIONS = ("engine.onnx", "prefill.onnx")
_SMALL_SECTION_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Comparison:
    """The outcome: whether files and contents are the same, and every difference, by part."""

    same_file: bool
    same_content: bool
    differences: tuple[Difference, ...]
    first: dict[str, object]
    second: dict[str, object]

    @property
    def parts(self) -> list[str]:
        """The parts that differ, in the order they are told."""
        found = {difference.part for difference in self.differences}
        return [part for part in PARTS if part in found]

    def of(self, part: str) -> list[Difference]:
        """Return the differences of one part."""
        return [difference for difference in self.differences if difference.part == part]

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack diff --json`` prints."""
        return {
            "first": self.first,
            "second": self.second,
            "same_file": self.same_file,
            "same_content": self.same_content,
            "parts": self.parts,
            "differences": [difference.as_json() for difference in self.differences],
        }


def compare_bundles(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Compare the bundles at two paths; raise what opening them raises.

    Sections whose digests are the same in both manifests count as the same without being read: whether a file holds
    what its manifest says is for ``validate``. ``same_file`` says that header, manifest, sections and trailer are the
    same; ``same_content`` that the content digests are.
    """
    with open_bundle(first) as one, open_bundle(second) as other:
        pair = Pair(one, other)
        differences = [*_manifest_differences(pair), *_section_differences(pair)]
        if one.container.header_bytes != other.container.header_bytes and not differences:
            differences.append(
                Difference("sections", "header", "the sections lie elsewhere, or the header is padded otherwise")
            )
        same_content = _content(one) == _content(other)
        same_file = not differences
        differences.sort(key=lambda difference: PARTS.index(difference.part))
        return Comparison(same_file, same_content, tuple(differences), _identity(one), _identity(other))


def _manifest_differences(pair: Pair) -> Iterator[Difference]:
    placed = {key for keys in _MANIFEST_PARTS.values() for key in keys}
    others = {*pair.first.manifest, *pair.second.manifest} - placed - {"sections", "content_digest"}
    for part, keys in {**_MANIFEST_PARTS, "sections": tuple(sorted(others))}.items():
        for key in keys:
            sides = [
                {key: bundle.manifest[key]} if key in bundle.manifest else {} for bundle in (pair.first, pair.second)
            ]
            yield from value_differences(part, "", sides[0], sides[1])


def _without_places(bundle: Bundle) -> dict[str, object]:
    """Return what a manifest says of its sections without lengths and digests, which follow from their bytes."""
    sections = bundle.manifest.get("sections")
    if not isinstance(sections, dict):
        return {}
    return {
        name: {key: value for key, value in entry.items() if key not in PLACE_KEYS}
        for name, entry in sections.items()
        if isinstance(entry, dict)
    }


def _section_differences(pair: Pair) -> Iterator[Difference]:
    yield from graph_differences(pair)
    yield from weight_differences(pair)
    yield from tokenizer_differences(pair)
    told = {
        *_ENGINE_SECTIONS,
        WEIGHTS_SECTION,
        MANIFEST_SECTION,
        *tokenizer_sections(pair.first),
        *tokenizer_sections(pair.second),
    }
    for name in [*pair.first.sections, *(name for name in pair.second.sections if name not in pair.first.sections)]:
        if name not in pair.second.sections or name not in pair.first.sections:
            owner = "first" if name in pair.first.sections else "second"
            yield Difference("sections", name, f"only the {owner} has it")
        elif name not in told and not pair.same_section(name):
            yield from _other_section(pair, name)
    yield from value_differences("provenance", "trailer#", _trailer(pair.first), _trailer(pair.second))


def _other_section(pair: Pair, name: str) -> Iterator[Difference]:
    """Yield what differs in a section without a comparison of its own: by its values where it is JSON or golden."""
    lengths = [f"{bundle.sections[name].length_bytes:,} bytes" for bundle in (pair.first, pair.second)]
    if name.endswith(".plan"):
        words = "another compiled engine (compilers do not reproduce them; the graphs' digests are in engines)"
        yield Difference("engines", name, words, *lengths)
        return
    part = "self_test" if name.endswith(".msgpack.zst") else "sections"
    values: list[Any] = []
    if part == "self_test":
        values = [unpack_golden(data, where=name) for data in pair.read(name, _SMALL_SECTION_BYTES)]
    elif name.endswith(".json"):
        values = [parse_json_object(data, where=name) for data in pair.read(name, _SMALL_SECTION_BYTES)]
    found = list(value_differences(part, f"{name}#", values[0], values[1])) if values else []
    yield from found or [Difference(part, name, "has other bytes", *lengths)]


def _trailer(bundle: Bundle) -> dict[str, object]:
    """Return what a trailer says of where the bundle comes from; its digests follow from the rest."""
    trailer = bundle.trailer() or {}
    return {key: value for key, value in trailer.items() if key == "provenance"}


def _content(bundle: Bundle) -> str:
    stated = bundle.manifest.get("content_digest")
    return stated if isinstance(stated, str) else content_digest(bundle.manifest)


def _identity(bundle: Bundle) -> dict[str, object]:
    trailer = bundle.trailer() or {}
    return {
        "path": str(bundle.path),
        "file_bytes": bundle.container.file_size,
        "content_digest": bundle.manifest.get("content_digest"),
        "file_digest": trailer.get("file_digest"),
        "layout_decision": bundle.manifest.get("layout_decision"),
    }
