"""Read header and manifest of a bundle from its first MiB, so that a download of that much is enough.

The trailer stands at the other end of the file and is not read; the manifest is held against its own content digest
instead. The file may end after the first MiB.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from rowpack_loaders.bundle import MANIFEST_LIMIT_BYTES, MANIFEST_VALUES_LIMIT
from rowpack_loaders.container import PREAMBLE_BYTES, open_regular_file
from rowpack_loaders.container_forms import FORMAT_1, MAGIC, check_magic, identify_form
from rowpack_loaders.container_header import Header, check_header
from rowpack_loaders.digests import content_digest
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION, check_version
from rowpack_loaders.strict_json import LARGEST_INTEGER, parse_json_object

FIRST_READ_BYTES = 2**20

_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class FirstMebibyte:
    """Header and manifest of a bundle; ``is_whole`` tells whether the file holds every section."""

    path: Path
    header: Header
    manifest: dict[str, object]
    is_whole: bool


def read_first_mebibyte(path: str | os.PathLike[str]) -> FirstMebibyte:
    """Return what the first MiB of the bundle at ``path`` says.

    Raises what :func:`rowpack_loaders.open_bundle` raises for a header or manifest that cannot be used,
    ``manifest_beyond_first_mebibyte`` where they end later, ``bundle_manifest_missing`` for older containers, and
    ``content_digest_mismatch`` for a manifest that is not the one its digest was written for.
    """
    path = Path(path)
    descriptor, opened = open_regular_file(path)
    try:
        data = _read(descriptor)
    finally:
        os.close(descriptor)
    if len(data) < PREAMBLE_BYTES:
        raise _too_short(path, f"{len(data)} bytes", f"at least {PREAMBLE_BYTES} bytes")
    check_magic(data[: len(MAGIC)], f"{path}, byte 0")
    (length,) = _U64.unpack_from(data, len(MAGIC))
    payload_start = PREAMBLE_BYTES + length
    _check_within(path, "header", payload_start, len(data))
    parsed = parse_json_object(data[PREAMBLE_BYTES:payload_start], where=f"{path}: header")
    # A part of a file is shorter than its sections; that they lie in it is for whoever reads them.
    form = identify_form(data[: len(MAGIC)], parsed)
    header = check_header(
        parsed, payload_start=payload_start, file_size=LARGEST_INTEGER, where=f"{path}: header#", form=form
    )
    place = header.sections.get(MANIFEST_SECTION)
    if place is None or form is not FORMAT_1:
        raise RowpackError(
            "bundle_manifest_missing",
            "The container has no manifest, which would say what it runs on",
            where=str(path),
            found=", ".join(list(header.sections)[:20]) or "no sections",
            expected=f"a section {MANIFEST_SECTION}",
            remedy="Convert it with rowpack migrate OLD -o NEW, or build it again from its checkpoint",
        )
    _check_within(path, "manifest", place.end_bytes, len(data))
    where = f"{path}: {MANIFEST_SECTION}"
    stored = data[place.offset_bytes : min(place.end_bytes, place.offset_bytes + MANIFEST_LIMIT_BYTES)]
    manifest = parse_json_object(stored, where=where, max_values=MANIFEST_VALUES_LIMIT)
    check_version(manifest, where)
    _check_content_digest(manifest, where)
    end = max(section.end_bytes for section in header.sections.values())
    return FirstMebibyte(path, header, manifest, is_whole=opened.st_size >= end)


def _read(descriptor: int) -> bytes:
    pieces, total = [], 0
    while total < FIRST_READ_BYTES:
        piece = os.pread(descriptor, FIRST_READ_BYTES - total, total)
        if not piece:
            break
        pieces.append(piece)
        total += len(piece)
    return b"".join(pieces)


def _check_within(path: Path, what: str, end_bytes: int, read_bytes: int) -> None:
    if end_bytes > FIRST_READ_BYTES:
        raise RowpackError(
            "manifest_beyond_first_mebibyte",
            f"The {what} ends after the first MiB",
            where=str(path),
            found=f"ends at byte {end_bytes}",
            expected=f"at most {FIRST_READ_BYTES}",
        )
    if end_bytes > read_bytes:
        raise _too_short(path, f"an end at byte {read_bytes}", f"the {what} up to byte {end_bytes}")


def _too_short(path: Path, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "container_too_short",
        "The file ends before it says what it is",
        where=str(path),
        found=found,
        expected=expected,
        remedy="Copy or download the file again, at least its first MiB",
    )


def _check_content_digest(manifest: dict[str, object], where: str) -> None:
    computed = content_digest(manifest)
    if manifest.get("content_digest") != computed:
        raise RowpackError(
            "content_digest_mismatch",
            "The manifest is not the one its content digest was written for",
            where=f"{where}#/content_digest",
            found=str(manifest.get("content_digest"))[:80],
            expected=computed,
            remedy="The manifest was damaged or changed by hand: build or copy the bundle again",
        )
