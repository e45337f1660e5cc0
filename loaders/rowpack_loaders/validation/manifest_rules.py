"""Rules about the manifest by itself: strict canonical JSON of a known schema."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.bundle import MANIFEST_LIMIT_BYTES, MANIFEST_VALUES_LIMIT
from rowpack_loaders.digests import canonical_json, content_digest
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, SCHEMA_MINOR, check_version
from rowpack_loaders.strict_json import json_pointer, parse_json_object
from rowpack_loaders.validation.schema_check import schema_problems
from rowpack_loaders.validation.subject import FIRST_READ_BYTES, Finding, Rule, Subject, Warned

LARGEST_EXACT_INTEGER = 2**53


def manifest_parses(subject: Subject) -> Iterator[Finding]:
    """The manifest is there and is strict JSON."""
    place = subject.section(MANIFEST_SECTION)
    if place is None:
        yield Problem(
            "bundle_manifest_missing",
            "The container has no manifest: it was written by a program that predates it",
            where="header#/sections",
            found=", ".join(list(subject.container.sections)[:20]) or "no sections",
            expected=MANIFEST_SECTION,
            remedy="Convert it with rowpack migrate OLD -o NEW, or build it again from its checkpoint",
        )
        return
    if subject.header_only and place.end_bytes > FIRST_READ_BYTES:
        return  # manifest_is_within_first_mebibyte has told it, and more must not be read
    subject.manifest_bytes = subject.container.read_section(MANIFEST_SECTION, limit_bytes=MANIFEST_LIMIT_BYTES)
    subject.parsed_manifest = parse_json_object(
        subject.manifest_bytes, where=MANIFEST_SECTION, max_values=MANIFEST_VALUES_LIMIT
    )


def manifest_version_is_known(subject: Subject) -> Iterator[Finding]:
    """The schema's major is known; of another one nothing can be said. Required features are known too."""
    if subject.parsed_manifest is None:
        return
    try:
        check_version(subject.manifest, MANIFEST_SECTION)
    except RowpackError as error:
        subject.schema_understood = error.code == "manifest_feature_unsupported"
        yield from error.problems
        return
    subject.schema_understood = True


def manifest_is_canonical(subject: Subject) -> Iterator[Finding]:
    """The stored text is the one canonical text of its value, so that equal manifests have equal digests."""
    if subject.parsed_manifest is None or subject.manifest_bytes is None:
        return
    wanted = canonical_json(subject.manifest)
    stored = subject.manifest_bytes
    if stored != wanted:
        at = first_difference(stored, wanted)
        yield Problem(
            "manifest_not_canonical",
            "The manifest is not in canonical form",
            where=f"{MANIFEST_SECTION}, byte {at}",
            found=repr(stored[at : at + 16]),
            expected=repr(wanted[at : at + 16]),
        )


def manifest_integers_are_exact(subject: Subject) -> Iterator[Finding]:
    """Integers survive a reader that holds numbers as doubles."""
    if subject.parsed_manifest is not None:
        for pointer, value in _integers(subject.manifest, ""):
            if abs(value) > LARGEST_EXACT_INTEGER:
                yield Problem(
                    "manifest_integer_not_exact",
                    "An integer is too large for readers that hold numbers as doubles",
                    where=f"{MANIFEST_SECTION}#{pointer}",
                    found=str(value),
                    expected=f"at most {LARGEST_EXACT_INTEGER}",
                )


def manifest_follows_schema(subject: Subject) -> Iterator[Finding]:
    """The manifest follows its schema; keys of a newer minor are told as warnings."""
    if subject.parsed_manifest is None or not subject.schema_understood:
        return
    newer = int(str(subject.manifest["schema_version"]).partition(".")[2]) > SCHEMA_MINOR
    for problem in schema_problems(subject.manifest, "manifest", MANIFEST_SECTION):
        if problem.code == "schema_key_unknown" and newer:
            yield Warned(problem)
        else:
            yield problem


def content_digest_matches(subject: Subject) -> Iterator[Finding]:
    """The content digest is that of the manifest."""
    if subject.parsed_manifest is None or not subject.schema_understood:
        return
    found, wanted = subject.manifest.get("content_digest"), content_digest(subject.manifest)
    if found != wanted:
        yield Problem(
            "content_digest_mismatch",
            "The content digest is not that of the manifest",
            where=f"{MANIFEST_SECTION}#/content_digest",
            found=str(found)[:80],
            expected=wanted,
            remedy="The manifest was damaged or changed by hand: build the bundle again",
        )


def first_difference(stored: bytes, wanted: bytes) -> int:
    """Return the position of the first byte in which two texts differ."""
    pairs = enumerate(zip(stored, wanted, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(stored), len(wanted)))


def _integers(value: object, pointer: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _integers(member, pointer + json_pointer(key[:64]))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _integers(member, f"{pointer}/{index}")
    elif isinstance(value, int):
        yield pointer, value


RULES: tuple[Rule, ...] = (
    manifest_parses,
    manifest_version_is_known,
    manifest_is_canonical,
    manifest_integers_are_exact,
    manifest_follows_schema,
    content_digest_matches,
)
