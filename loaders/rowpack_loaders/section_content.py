"""Give the content of a section whatever way it is stored: raw, or as extents over another section.

Content is read at any place, piece by piece, so that an engine of any size can be handed to a library or digested
without being held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from rowpack_loaders.container import Container
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.extents import ExtentContent, ReadInto, parse_extents
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields

EXTENTS_ENCODING = "extents"
EXTENTS_FEATURE = "section_extents"
"""Entry of ``required_features`` in a bundle with such a section: a reader without it would take it for raw."""

PIECE_BYTES = 4 * 2**20


class SectionContent(Protocol):
    """The content of a section."""

    length_bytes: int

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill ``buffer`` from an offset; the range must lie inside the content."""
        ...


class RawContent:
    """The content of a section that is stored as it is."""

    def __init__(self, length_bytes: int, read: ReadInto, view: Callable[[], memoryview]) -> None:
        self.length_bytes = length_bytes
        self._read = read
        self._view = view

    def view(self) -> memoryview:
        """Return the content in place, over the file's mapping."""
        return self._view()

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill ``buffer`` from an offset; the range must lie inside the content."""
        if offset_bytes < 0 or offset_bytes + len(buffer) > self.length_bytes:
            raise ValueError(f"{len(buffer)} bytes at {offset_bytes} of {self.length_bytes}")
        self._read(buffer, offset_bytes)


@dataclass(frozen=True)
class ExtentsRecord:
    """What the manifest says of a section stored as extents: its base, and length and digest of its content."""

    base: str
    length: int
    sha256: str


def read_extents_record(manifest: dict[str, object], name: str) -> ExtentsRecord | None:
    """Return the record of section ``name``, or None when it is stored another way."""
    sections = Fields(manifest, "", MANIFEST_SECTION).child("sections")
    if name not in sections.raw:
        return None
    entry = sections.child(name)
    if entry.text("encoding") != EXTENTS_ENCODING:
        return None
    record = entry.child("extents")
    return ExtentsRecord(record.text("base"), record.integer("length"), record.text("sha256"))


def open_content(container: Container, manifest: dict[str, object], name: str) -> SectionContent:
    """Return the content of section ``name`` of an open container.

    Raises ``section_missing``, ``extents_base_unsuitable`` and ``extents_malformed``.
    """
    place = container.section_range(name)
    record = read_extents_record(manifest, name)
    if record is None:
        return RawContent(place.length_bytes, _reader(container, place), partial(container.section_view, name))
    base = _base_range(container, manifest, name, record)
    where = f"{container.path}: {name}"
    stored = _reader(container, place)
    table = parse_extents(stored, place.length_bytes, base.length_bytes, where=where)
    if table.length_bytes != record.length:
        raise RowpackError(
            "extents_malformed",
            "A section stored as extents has another length than the manifest says",
            where=where,
            found=f"{table.length_bytes} bytes",
            expected=f"{record.length} bytes",
            remedy="The file was damaged: build or copy the bundle again",
        )
    return ExtentContent(table, stored, _reader(container, base))


def content_pieces(content: SectionContent, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """Yield the content in order; each piece is valid until the next."""
    buffer = memoryview(bytearray(min(piece_bytes, content.length_bytes)))
    for offset in range(0, content.length_bytes, piece_bytes):
        piece = buffer[: min(piece_bytes, content.length_bytes - offset)]
        content.read_into(piece, offset)
        yield piece


def content_sha256(content: SectionContent) -> str:
    """Return the SHA-256 of the content."""
    digest = hashlib.sha256()
    for piece in content_pieces(content):
        digest.update(piece)
    return digest.hexdigest()


def check_content_digest(content: SectionContent, manifest: dict[str, object], name: str, where: str) -> None:
    """Raise ``section_digest_mismatch`` unless the content is the one the manifest was written for."""
    record = read_extents_record(manifest, name)
    expected = Fields(manifest, "", MANIFEST_SECTION).child("sections").child(name).text("sha256")
    if record is not None:
        expected = record.sha256
    found = content_sha256(content)
    if found != expected:
        raise RowpackError(
            "section_digest_mismatch",
            "A section's content is not the one the manifest was written for",
            where=f"{where}: {name}",
            found=found,
            expected=expected[:80],
            remedy="Copy or download the bundle again",
        )


def _base_range(container: Container, manifest: dict[str, object], name: str, record: ExtentsRecord) -> SectionRange:
    """Return the range of the section that ``name`` copies from: another one, there, and stored raw."""
    sections = manifest.get("sections")
    entry = sections.get(record.base) if isinstance(sections, Mapping) else None
    encoding = entry.get("encoding") if isinstance(entry, Mapping) else None
    if record.base == name or record.base not in container.sections or encoding != "raw":
        raise RowpackError(
            "extents_base_unsuitable",
            "A section stored as extents copies from one that cannot be copied from",
            where=f"{container.path}: {name}",
            found=f"{record.base[:128]!r}, {'stored as ' + str(encoding)[:32] if encoding else 'not there'}",
            expected="another section of the bundle that is stored raw",
            remedy="The manifest was changed or damaged: build or copy the bundle again",
        )
    return container.section_range(record.base)


def _reader(container: Container, place: SectionRange) -> ReadInto:
    def read(buffer: memoryview, offset_bytes: int) -> None:
        container.read_into(buffer, place.offset_bytes + offset_bytes)

    return read
