"""Rules about what names what: header, section table, and every place of the manifest that names a section."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.section_content import EXTENTS_ENCODING, EXTENTS_FEATURE
from rowpack_loaders.strict_json import json_pointer
from rowpack_loaders.validation.subject import Finding, Rule, Subject, Warned

SHARED_PLAN = "prefill.plan"
"""The section that may be stored as extents; old loaders do not read it."""


def header_matches_manifest(subject: Subject) -> Iterator[Finding]:
    """Family and backend are the same in the header and in the manifest."""
    manifest, header = subject.manifest_fields, subject.container.header
    pairs = [("/model/family", manifest.child("model").text("family"), header.family)]
    for name, engine in manifest.members("engines"):
        pairs.append((f"/engines/{name}/backend", engine.text("backend"), header.backend))
    for pointer, found, wanted in pairs:
        if found != wanted:
            yield Problem(
                "header_manifest_mismatch",
                "The manifest and the header name different things",
                where=f"{MANIFEST_SECTION}#{pointer}",
                found=found[:80],
                expected=f"{wanted}, as in the header",
            )


def every_section_is_declared(subject: Subject) -> Iterator[Finding]:
    """The header lists no section that the manifest does not declare; no byte of the file is unaccounted for."""
    declared = subject.manifest_fields.child("sections").raw
    for name in subject.container.sections:
        if name not in declared and name != MANIFEST_SECTION:
            yield Problem(
                "section_undeclared",
                "The file has a section that the manifest does not declare",
                where=f"{MANIFEST_SECTION}#/sections",
                found=repr(name),
                expected="every section but the manifest itself",
            )


def every_declared_section_is_there(subject: Subject) -> Iterator[Finding]:
    """The manifest declares no section that the header does not list, and each with its length."""
    for name, entry in subject.manifest_fields.members("sections"):
        where = f"{MANIFEST_SECTION}#{json_pointer('sections', name)}"
        place = subject.section(name)
        if place is None or name == MANIFEST_SECTION:
            yield Problem(
                "section_declared_missing",
                "The manifest declares a section that is not in the file"
                if place is None
                else "The manifest declares itself",
                where=where,
                found=", ".join(list(subject.container.sections)[:20])[:400],
                expected=f"{name} in the header" if place is None else "every section but the manifest",
            )
        elif place.length_bytes != entry.integer("length"):
            yield Problem(
                "section_length_mismatch",
                "Manifest and header give different lengths for a section",
                where=f"{where}/length",
                found=str(entry.integer("length")),
                expected=f"{place.length_bytes}, as in the header",
            )


def references_are_declared(subject: Subject) -> Iterator[Finding]:
    """Each place that names a section names one that is there."""
    for pointer, name in _references(subject.manifest_fields):
        if subject.section(name) is None:
            yield Problem(
                "section_reference_missing",
                "The manifest refers to a section that is not in the file",
                where=f"{MANIFEST_SECTION}#{pointer}",
                found=repr(name[:128]),
                expected="the name of a section",
            )


def required_sections_are_referred_to(subject: Subject) -> Iterator[Finding]:
    """A section that a loader cannot do without is named where the loader looks for it."""
    named = {name for _, name in _references(subject.manifest_fields)}
    for name, entry in subject.manifest_fields.members("sections"):
        if entry.boolean("required") and name not in named:
            yield Warned(
                Problem(
                    "section_unreferenced",
                    "A section is marked as required, but nothing in the manifest refers to it",
                    where=f"{MANIFEST_SECTION}#{json_pointer('sections', name, 'required')}",
                    found="true",
                    expected="false, or a reference",
                )
            )


def needed_sections_are_required(subject: Subject) -> Iterator[Finding]:
    """A section without which no loader can run the model is not marked as one that may be skipped."""
    manifest = subject.manifest_fields
    weights = manifest.optional_child("weights")
    needed = {engine.text("section") for name, engine in manifest.members("engines") if name == "decode"}
    if weights is not None:
        needed.add(weights.text("section"))
    for name, entry in manifest.members("sections"):
        if name in needed and not entry.boolean("required"):
            yield Problem(
                "section_needed_optional",
                "A section that every loader needs is marked as optional",
                where=f"{MANIFEST_SECTION}#{json_pointer('sections', name, 'required')}",
                found="false",
                expected="true",
            )


def each_use_has_its_own_section(subject: Subject) -> Iterator[Finding]:
    """No section serves two uses: two engines in one section would be one engine."""
    seen: dict[str, str] = {}
    for pointer, name in _references(subject.manifest_fields):
        first = seen.setdefault(name, pointer)
        both_tokenizer = first.startswith("/tokenizer/") and pointer.startswith("/tokenizer/")
        if first != pointer and not both_tokenizer:
            yield Problem(
                "section_used_twice",
                "Two uses name the same section",
                where=f"{MANIFEST_SECTION}#{pointer}",
                found=repr(name[:128]),
                expected=f"another section than {first}",
            )


def encodings_fit_uses(subject: Subject) -> Iterator[Finding]:
    """Engines and weights are stored raw, to be mapped; ``.zst`` in a name and zstd go together.

    A prefill plan may be stored as extents, which is a feature that readers are told of.
    """
    features = subject.manifest_fields.texts("required_features")
    mapped = {
        name
        for pointer, name in _references(subject.manifest_fields)
        if pointer.startswith(("/engines/", "/weights/", "/runtime_json/"))
    }
    for name, entry in subject.manifest_fields.members("sections"):
        encoding = entry.text("encoding")
        wanted = "zstd" if name.endswith(".zst") and name not in mapped else "raw"
        if name == SHARED_PLAN and encoding == EXTENTS_ENCODING and EXTENTS_FEATURE in features:
            continue
        if encoding != wanted:
            yield Problem(
                "section_encoding_unexpected",
                "A section is not encoded as its use demands",
                where=f"{MANIFEST_SECTION}#{json_pointer('sections', name, 'encoding')}",
                found=encoding,
                expected=wanted,
            )


def _references(manifest: Fields) -> Iterator[tuple[str, str]]:
    """Yield every place (JSON pointer) of the manifest that names a section, and the name."""
    for name, engine in manifest.members("engines"):
        yield json_pointer("engines", name, "section"), engine.text("section")
    for key in ("weights", "runtime_json", "self_test"):
        part = manifest.optional_child(key)
        if part is not None:
            yield f"/{key}/section", part.text("section")
    tokenizer = manifest.child("tokenizer")
    for index, name in enumerate(tokenizer.texts("sections")):
        yield f"/tokenizer/sections/{index}", name
    template = tokenizer.optional_text("chat_template_section")
    if template is not None:
        yield "/tokenizer/chat_template_section", template


RULES: tuple[Rule, ...] = (
    header_matches_manifest,
    every_section_is_declared,
    every_declared_section_is_there,
    references_are_declared,
    required_sections_are_referred_to,
    needed_sections_are_required,
    each_use_has_its_own_section,
    encodings_fit_uses,
)
