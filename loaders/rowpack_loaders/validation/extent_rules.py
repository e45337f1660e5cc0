"""The rule about sections stored as extents: they describe exactly the content the manifest was written for."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.section_content import EXTENTS_ENCODING, check_content_digest, open_content
from rowpack_loaders.strict_json import json_pointer
from rowpack_loaders.validation.subject import Finding, Rule, Subject


def extents_give_their_content(subject: Subject) -> Iterator[Finding]:
    """Each table covers its content, its literals and ranges of its base, and the content has its digest."""
    for name, entry in subject.manifest_fields.members("sections"):
        stored_as_extents = entry.text("encoding") == EXTENTS_ENCODING
        if stored_as_extents != ("extents" in entry.raw):
            yield Problem(
                "section_encoding_unexpected",
                "A section's encoding and its record of extents contradict each other",
                where=f"{MANIFEST_SECTION}#{json_pointer('sections', name, 'encoding')}",
                found=entry.text("encoding"),
                expected=EXTENTS_ENCODING if "extents" in entry.raw else "a record of extents",
            )
        elif stored_as_extents and subject.section(name) is not None:
            try:
                content = open_content(subject.container, subject.manifest, name)
                check_content_digest(content, subject.manifest, name, str(subject.path))
            except RowpackError as error:
                yield from error.problems


RULES: tuple[Rule, ...] = (extents_give_their_content,)
