"""Read a section that is stored as extents: literal bytes, and copies of ranges of another section.

    0–7          magic 45 58 54 45 4E 54 01 00 (EXTENT\\1\\0)
    8–15         length of the content, u64 little-endian
    16–23        N, number of extents, u64
    24 … 24+24N  N × (kind u64, length u64, offset u64): the content in order
    24+24N …     literal bytes, up to the end of the section

``kind`` 0 takes ``length`` bytes at ``offset`` of the literals, 1 as many at ``offset`` of the base section, which is
stored raw. Literals are used in order and to the last byte. Nothing is allocated from the numbers: the table is
bounded by the section, and content is handed out piece by piece.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from rowpack_loaders.errors import RowpackError

MAGIC = bytes.fromhex("45 58 54 45 4E 54 01 00")
HEADER_BYTES = 24
EXTENT_BYTES = 24
MOST_EXTENTS = 2**20
MOST_BASE_COPIES = 2
"""Copies may take this many times the base in all: a small section must not stand for an endless content."""

LITERAL = 0
COPY = 1

_HEADER = struct.Struct("<8sQQ")
_EXTENT = struct.Struct("<QQQ")

ReadInto = Callable[[memoryview, int], None]
"""Fills a buffer from an offset of a section's stored bytes."""


@dataclass(frozen=True)
class Extent:
    """``length_bytes`` of the content, found at ``offset_bytes`` of the literals or of the base."""

    is_copy: bool
    length_bytes: int
    offset_bytes: int


@dataclass(frozen=True)
class ExtentTable:
    """The extents of a section in the content's order, and where each begins in the content."""

    length_bytes: int
    extents: tuple[Extent, ...]
    literals_start_bytes: int
    starts: tuple[int, ...]


def parse_extents(read: ReadInto, stored_bytes: int, base_bytes: int, *, where: str) -> ExtentTable:
    """Read and check the table of a section of ``stored_bytes`` over a base of ``base_bytes``.

    ``read`` fills a buffer from the section's stored bytes. Raises ``extents_malformed`` for a table that does not
    describe exactly its content, its literals and ranges of the base.
    """
    if stored_bytes < HEADER_BYTES:
        raise _malformed(where, f"{stored_bytes} bytes", f"at least {HEADER_BYTES} bytes")
    header = memoryview(bytearray(HEADER_BYTES))
    read(header, 0)
    magic, length, count = _HEADER.unpack(header)
    if magic != MAGIC:
        raise _malformed(f"{where}, byte 0", magic.hex(" "), MAGIC.hex(" "))
    table_end = HEADER_BYTES + EXTENT_BYTES * count
    if count > MOST_EXTENTS or table_end > stored_bytes:
        most = min(MOST_EXTENTS, (stored_bytes - HEADER_BYTES) // EXTENT_BYTES)
        raise _malformed(f"{where}, byte 16", f"{count} extents", f"at most {most}")
    table = memoryview(bytearray(EXTENT_BYTES * count))
    read(table, HEADER_BYTES)
    extents = tuple(_extents(table, stored_bytes - table_end, base_bytes, where))
    ends = list(accumulate((extent.length_bytes for extent in extents), initial=0))
    if ends[-1] != length:
        raise _malformed(f"{where}, byte 8", f"a length of {length}", f"{ends[-1]}, the sum of the extents")
    return ExtentTable(length, extents, table_end, tuple(ends[:-1]))


def _extents(table: memoryview, literal_bytes: int, base_bytes: int, where: str) -> Iterator[Extent]:
    used = copied = 0
    for index, (kind, length, offset) in enumerate(_EXTENT.iter_unpack(table)):
        place = f"{where}, extent {index}"
        if kind not in (LITERAL, COPY) or length == 0:
            raise _malformed(place, f"kind {kind}, length {length}", "kind 0 or 1, and a length above 0")
        if kind == LITERAL:
            if offset != used or length > literal_bytes - used:
                expected = f"offset {used}, at most {literal_bytes - used} bytes"
                raise _malformed(place, f"offset {offset}, {length} literal bytes", expected)
            used += length
        else:
            copied += length
            if offset > base_bytes or length > base_bytes - offset:
                raise _malformed(place, f"{length} bytes at {offset}", f"a range of the base's {base_bytes} bytes")
            if copied > MOST_BASE_COPIES * base_bytes:
                raise _malformed(place, f"{copied} copied bytes", f"at most {MOST_BASE_COPIES} times the base")
        yield Extent(kind == COPY, length, offset)
    if used != literal_bytes:
        raise _malformed(where, f"{used} literal bytes in use", f"{literal_bytes}, all there are")


class ExtentContent:
    """The content of a section stored as extents, at any place of it; nothing is kept but the table."""

    def __init__(self, table: ExtentTable, read_stored: ReadInto, read_base: ReadInto) -> None:
        self._table = table
        self._read_stored = read_stored
        self._read_base = read_base
        self.length_bytes = table.length_bytes

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill ``buffer`` from an offset of the content; the range must lie inside it."""
        if offset_bytes < 0 or offset_bytes + len(buffer) > self.length_bytes:
            raise ValueError(f"{len(buffer)} bytes at {offset_bytes} of {self.length_bytes}")
        index = bisect_right(self._table.starts, offset_bytes) - 1
        while buffer:
            extent = self._table.extents[index]
            inside = offset_bytes - self._table.starts[index]
            part = buffer[: extent.length_bytes - inside]
            if extent.is_copy:
                self._read_base(part, extent.offset_bytes + inside)
            else:
                self._read_stored(part, self._table.literals_start_bytes + extent.offset_bytes + inside)
            buffer = buffer[len(part) :]
            offset_bytes += len(part)
            index += 1


def encode_header(length_bytes: int, extents: list[Extent]) -> bytes:
    """Return everything before the literals: header and table."""
    table = b"".join(
        _EXTENT.pack(COPY if extent.is_copy else LITERAL, extent.length_bytes, extent.offset_bytes)
        for extent in extents
    )
    return _HEADER.pack(MAGIC, length_bytes, len(extents)) + table


def _malformed(where: str, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "extents_malformed",
        "A section stored as extents does not describe its content",
        where=where,
        found=found,
        expected=expected,
        remedy="The file was damaged: build or copy the bundle again",
    )
