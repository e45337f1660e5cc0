"""Find what one engine plan has in common with another, and store it as extents over that other.

Two plans of one model hold the same weights byte for byte, at other places. Blocks of the base are indexed by the
sixteen bytes they begin with; where those occur in the content, on a multiple of eight bytes, the match is grown in
both directions as far as the bytes agree. Only what matches nothing is scanned position by position, and that is the
small rest: kernels, and weights that a compiler laid out anew. No knowledge of the plans' form is used or needed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rowpack_loaders.extents import MOST_BASE_COPIES, MOST_EXTENTS, Extent, encode_header

BLOCK_BYTES = 4096
"""Distance of the indexed places in the base: a shared range of twice this length is always found."""

STEP_BYTES = 8
"""Places of the content that are looked at; libraries align weights to more than that."""

SMALLEST_COPY_BYTES = 512
"""Shorter matches stay literal: an extent takes 24 bytes, and reading many small ones costs time."""

_WINDOW_WORDS = 2**17
_COMPARED_BYTES = 2**20
_TABLE_BITS = 22
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SharedExtents:
    """A content as extents over a base; ``pieces`` yields what is stored."""

    content_bytes: int
    extents: tuple[Extent, ...]
    copied_bytes: int
    stored_bytes: int


def mapped_bytes(path: Path, offset_bytes: int, length_bytes: int) -> Bytes:
    """Return a read-only array over a range of a file; nothing is read until it is used."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.uint8, count=length_bytes, offset=offset_bytes)


def find_shared_extents(content: Bytes, base: Bytes) -> SharedExtents:
    """Return ``content`` as extents over ``base``, the longest matches a scan from the front finds."""
    index = _BlockIndex(base)
    extents: list[Extent] = []
    literal_start = position = copied = literals = 0

    def flush_literal(end: int) -> None:
        nonlocal literals
        if end > literal_start:
            extents.append(Extent(False, end - literal_start, literals))
            literals += end - literal_start

    while len(extents) < MOST_EXTENTS - 3:
        match = index.next_match(content, position, literal_start)
        if match is None:
            break
        if copied + match.length > MOST_BASE_COPIES * len(base):
            break
        flush_literal(match.start)
        extents.append(Extent(True, match.length, match.base_start))
        copied += match.length
        literal_start = position = match.start + match.length
    flush_literal(len(content))
    stored = len(encode_header(0, extents)) + literals
    return SharedExtents(len(content), tuple(extents), copied, stored)


def stored_pieces(shared: SharedExtents, content: Bytes) -> Iterator[bytes | memoryview]:
    """Yield the section as it is stored: header, table, and the literal bytes of ``content``."""
    yield encode_header(shared.content_bytes, list(shared.extents))
    start = 0
    for extent in shared.extents:
        if not extent.is_copy:
            yield content[start : start + extent.length_bytes].data
        start += extent.length_bytes


@dataclass(frozen=True)
class _Match:
    start: int
    base_start: int
    length: int


class _BlockIndex:
    """The places of a base's blocks by the mixed value of the sixteen bytes they begin with."""

    def __init__(self, base: Bytes) -> None:
        self._base = base
        starts = np.arange(0, max(0, len(base) - BLOCK_BYTES), BLOCK_BYTES)
        pairs = np.stack([base[starts + shift] for shift in range(16)], axis=1) if len(starts) else np.zeros((0, 16))
        words = np.ascontiguousarray(pairs, np.uint8).view(np.uint64)
        keys = _mixed(words[:, 0], words[:, 1])
        # A beginning that many blocks share (zeros, mostly) tells nothing about where a match lies.
        unique, first, counts = np.unique(keys, return_index=True, return_counts=True)
        self._keys: Words = unique[counts == 1]
        self._starts = starts[first[counts == 1]]
        self._present = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._present[(self._keys >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)] = True

    def next_match(self, content: Bytes, position: int, earliest: int) -> _Match | None:
        """Return the first match found from ``position`` on, grown backwards to ``earliest`` at most."""
        position = -(-position // STEP_BYTES) * STEP_BYTES
        while position + 16 <= len(content):
            count = min(_WINDOW_WORDS, (len(content) - position) // STEP_BYTES)
            words = content[position : position + count * STEP_BYTES].view(np.uint64)
            keys = _mixed(words[:-1], words[1:])
            candidates = np.flatnonzero(self._present[(keys >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)])
            places = np.searchsorted(self._keys, keys[candidates])
            places[places == len(self._keys)] = 0
            hits = np.flatnonzero(self._keys[places] == keys[candidates]) if len(self._keys) else candidates[:0]
            for hit in hits:
                start = position + int(candidates[hit]) * STEP_BYTES
                match = self._grown(content, start, int(self._starts[places[hit]]), earliest)
                if match.length >= SMALLEST_COPY_BYTES:
                    return match
            position += (count - 1) * STEP_BYTES
            if count < 2:
                break
        return None

    def _grown(self, content: Bytes, start: int, base_start: int, earliest: int) -> _Match:
        forward = _common_prefix(content[start:], self._base[base_start:])
        backward = _common_prefix(content[earliest:start][::-1], self._base[:base_start][::-1])
        return _Match(start - backward, base_start - backward, forward + backward)


def _mixed(first: Any, second: Any) -> Words:
    with np.errstate(over="ignore"):
        mixed: Words = first * _MIX[0] + (second ^ (second >> np.uint64(29))) * _MIX[1]
        return mixed ^ (mixed >> np.uint64(32)) * _MIX[0]


def _common_prefix(left: Bytes, right: Bytes) -> int:
    """Return how many bytes two arrays have in common at their beginnings."""
    length = min(len(left), len(right))
    step = 4096
    position = 0
    while position < length:
        end = min(position + step, length)
        different = np.flatnonzero(left[position:end] != right[position:end])
        if len(different):
            return position + int(different[0])
        position, step = end, _COMPARED_BYTES
    return length
