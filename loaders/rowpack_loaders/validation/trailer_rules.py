"""Rules about the trailer: there, canonical, and with the digests of this very file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from rowpack_loaders.bundle import preamble_sha256
from rowpack_loaders.digests import canonical_json, file_digest
from rowpack_loaders.errors import Problem
from rowpack_loaders.strict_json import is_json_integer
from rowpack_loaders.validation.manifest_rules import first_difference
from rowpack_loaders.validation.schema_check import schema_problems
from rowpack_loaders.validation.subject import Finding, Rule, Subject, Warned

TRAILER_VERSION = 1
BUILD_TYPE = "urn:rowpack:build:1"


def trailer_is_there(subject: Subject) -> Iterator[Finding]:
    """A written bundle ends in a trailer; without one nothing vouches for header and manifest."""
    if subject.container.trailer_range() is None:
        yield Warned(
            Problem(
                "trailer_missing",
                "The file has no trailer: changes of header and manifest cannot be noticed",
                where=f"byte {subject.container.sections_end}",
                found="no trailer",
                expected="a trailer behind the last section",
            )
        )


def trailer_is_canonical(subject: Subject) -> Iterator[Finding]:
    """The trailer's text is the canonical text of its value."""
    place = subject.container.trailer_range()
    trailer = subject.trailer
    if place is None or trailer is None:
        return
    stored, wanted = subject.container.read_at(place.offset_bytes, place.length_bytes), canonical_json(trailer)
    if stored != wanted:
        at = first_difference(stored, wanted)
        yield Problem(
            "trailer_not_canonical",
            "The trailer is not in canonical form",
            where=f"byte {place.offset_bytes + at}",
            found=repr(stored[at : at + 16]),
            expected=repr(wanted[at : at + 16]),
        )


def trailer_version_is_known(subject: Subject) -> Iterator[Finding]:
    """The trailer has a version this program knows."""
    trailer = subject.trailer
    if trailer is not None:
        version = trailer.get("trailer_version")
        if not is_json_integer(version) or version != TRAILER_VERSION:
            yield Problem(
                "trailer_version_unsupported",
                "The trailer has a version that this program does not know",
                where="trailer#/trailer_version",
                found=repr(version)[:64],
                expected=str(TRAILER_VERSION),
            )


def trailer_digests_match(subject: Subject) -> Iterator[Finding]:
    """The trailer's digests are those of header, manifest, content, provenance and the whole file."""
    trailer = subject.trailer
    if trailer is None:
        return
    for key, wanted in _digests(subject, trailer).items():
        if trailer.get(key) != wanted:
            yield Problem(
                "trailer_digest_mismatch",
                "A digest in the trailer is not that of the file",
                where=f"trailer#/{key}",
                found=str(trailer.get(key))[:80],
                expected=wanted,
                remedy="The file was damaged or changed: build or copy it again",
            )


def trailer_follows_schema(subject: Subject) -> Iterator[Finding]:
    """The trailer has the keys of its version and no others."""
    trailer = subject.trailer
    if trailer is not None and trailer.get("trailer_version") == TRAILER_VERSION:
        yield from schema_problems(trailer, "trailer", "trailer")


def provenance_follows_its_schema(subject: Subject) -> Iterator[Finding]:
    """Provenance of this project's builds follows its schema; other builders may say other things."""
    trailer = subject.trailer
    provenance = trailer.get("provenance") if trailer is not None else None
    if isinstance(provenance, dict) and _build_type(provenance) == BUILD_TYPE:
        yield from schema_problems(provenance, "provenance", "trailer#/provenance")


def _build_type(provenance: dict[str, object]) -> object:
    """Return SLSA's ``buildType``, or None where there is none."""
    value: object = provenance
    for key in ("predicate", "buildDefinition", "buildType"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _digests(subject: Subject, trailer: dict[str, object]) -> dict[str, str]:
    """Return the digests as they should be, as far as earlier layers could compute them."""
    header_sha256 = preamble_sha256(subject.container)
    wanted = {
        "header_sha256": header_sha256,
        "provenance_sha256": hashlib.sha256(canonical_json(trailer.get("provenance"))).hexdigest(),
    }
    if subject.manifest_bytes is not None:
        wanted["manifest_sha256"] = hashlib.sha256(subject.manifest_bytes).hexdigest()
    if subject.parsed_manifest is not None and isinstance(subject.manifest.get("content_digest"), str):
        wanted["content_digest"] = str(subject.manifest["content_digest"])
    if subject.section_sha256:
        wanted["file_digest"] = file_digest(
            header_sha256, subject.container.sections, subject.section_sha256, subject.container.payload_start
        )
    return wanted


RULES: tuple[Rule, ...] = (
    trailer_is_there,
    trailer_is_canonical,
    trailer_version_is_known,
    trailer_digests_match,
    trailer_follows_schema,
    provenance_follows_its_schema,
)
