"""Cut a stream into slices that end on multiples of their size in the file they go to.

Where a write covers 2 MiB at a multiple of 2 MiB, Linux keeps them as one page of its cache (file systems with large
folios: ext4, XFS), and whoever maps the file later maps them by one entry. Pieces cut anywhere else leave pages of
4 KiB, and a step that reads all weights waits for their translations (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SLICE_BYTES = 4 * 2**20
"""Slices are hashed and written at the same time; larger ones would only leave the caches. A multiple of 2 MiB."""


def file_slices(pieces: Iterable[memoryview], offset_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of ``pieces`` (one dimension), which go to ``offset_bytes`` …, in slices of SLICE_BYTES or less.

    Every slice but the last ends on a multiple of SLICE_BYTES. A slice may be of a buffer that the next one reuses.
    """
    gathered = memoryview(bytearray(SLICE_BYTES))
    filled = 0
    room = SLICE_BYTES - offset_bytes % SLICE_BYTES
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            part = piece[begin : begin + room - filled]
            begin += len(part)
            if len(part) < room:
                gathered[filled : filled + len(part)] = part
                filled += len(part)
                if filled < room:
                    continue
                part = gathered[:filled]
            yield part
            filled = 0
            room = SLICE_BYTES
    if filled:
        yield gathered[:filled]
