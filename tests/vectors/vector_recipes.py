"""Write a broken file down as a recipe: pieces of a good one, and what stands between them.

A recipe is JSON that a program in any language follows in a few lines: the file is its pieces one after the other.

    {"base": [0, 4096]}                  bytes 0 … 4095 of the base
    {"text": "true"}                     UTF-8
    {"hex": "ff fe"}                     bytes
    {"repeat": "20", "count": 4080}      the bytes so many times
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

SHORTEST_COPY = 24
SHORTEST_RUN = 48
LARGEST_WRITTEN_RUN = 2**20


def build(pieces: Iterable[dict[str, Any]], base: bytes, path: Path) -> None:
    """Write the file of a recipe; long runs of zeros become holes."""
    with path.open("wb") as file:
        for piece in pieces:
            data, count = piece_bytes(piece, base)
            if len(data) * count > LARGEST_WRITTEN_RUN and not data.strip(b"\0"):
                file.seek(len(data) * count, 1)
            else:
                file.write(data * count)
        file.truncate(file.tell())


def piece_bytes(piece: dict[str, Any], base: bytes) -> tuple[bytes, int]:
    """Return the bytes of a piece and how often they occur; ValueError for a piece of no known form."""
    match piece:
        case {"base": [int(start), int(end)], **rest} if not rest and 0 <= start <= end <= len(base):
            return base[start:end], 1
        case {"text": str(text), **rest} if not rest:
            return text.encode("utf-8"), 1
        case {"hex": str(text), **rest} if not rest:
            return bytes.fromhex(text), 1
        case {"repeat": str(text), "count": int(count), **rest} if not rest and count >= 0:
            return bytes.fromhex(text), count
    raise ValueError(f"not a piece: {piece}")


def recipe_of(data: bytes, base: bytes) -> list[dict[str, Any]]:
    """Return pieces that make ``data``; the same arguments give the same pieces."""
    places = _places(base)
    pieces: list[dict[str, Any]] = []
    position = written = 0
    while position < len(data):
        start = _copy_start(data, position, base, places)
        period, run = _run(data, position)
        if start is not None:
            length = _common_length(data, position, base, start)
            piece = {"base": [start, start + length]}
        elif run >= SHORTEST_RUN:
            length = run
            piece = {"repeat": data[position : position + period].hex(" "), "count": run // period}
        else:
            position += 1
            continue
        pieces += [*_literal(data[written:position]), piece]
        position += length
        written = position
    return [*pieces, *_literal(data[written:])]


@cache
def _places(base: bytes) -> dict[bytes, int]:
    """Return where each short piece of ``base`` occurs first."""
    starts = range(len(base) - SHORTEST_COPY, -1, -1)
    return {base[start : start + SHORTEST_COPY]: start for start in starts}


def _copy_start(data: bytes, position: int, base: bytes, places: dict[bytes, int]) -> int | None:
    # The same place first: most of a broken file is where it was.
    probe = data[position : position + SHORTEST_COPY]
    if len(probe) < SHORTEST_COPY:
        return None
    if base[position : position + SHORTEST_COPY] == probe:
        return position
    # The tail of a file that is longer or shorter than its base.
    aligned = position - len(data) + len(base)
    if aligned >= 0 and base[aligned : aligned + SHORTEST_COPY] == probe:
        return aligned
    return None if len(set(probe)) == 1 else places.get(probe)


def _common_length(data: bytes, position: int, base: bytes, start: int) -> int:
    length, most = 0, min(len(data) - position, len(base) - start)
    while length < most and data[position + length] == base[start + length]:
        length += 1
    return length


def _run(data: bytes, position: int) -> tuple[int, int]:
    """Return period and length of a run of one or two bytes that repeat."""
    for period in (1, 2):
        unit = data[position : position + period]
        if data[position : position + SHORTEST_RUN] == unit * (SHORTEST_RUN // period):
            end = position + SHORTEST_RUN
            while data[end : end + period] == unit:
                end += period
            return period, end - position
    return 1, 0


def _literal(data: bytes) -> Iterator[dict[str, Any]]:
    if not data:
        return
    if data.isascii() and all(32 <= byte < 127 for byte in data):
        yield {"text": data.decode()}
    else:
        yield {"hex": data.hex(" ")}
