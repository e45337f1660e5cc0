"""Where the writes of a bundle end: on multiples of a slice in the file, whatever pieces the bytes come in."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rowpack.bundle import BundleWriter, file_slices

LARGE_PAGE_BYTES = 2 * 2**20
SMALL = 16
"""Bytes of a slice in these tests, so that pieces of every size against it are quick."""


def slices_of(sizes: list[int], offset_bytes: int) -> tuple[bytes, list[bytes]]:
    """Return the bytes of pieces of those sizes, and the slices they are cut into; a slice is copied at once."""
    total = sum(sizes)
    data = bytes(index % 251 for index in range(total))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    pieces = (memoryview(data)[end - size : end] for size, end in zip(sizes, ends, strict=True))
    with mock.patch.object(file_slices, "SLICE_BYTES", SMALL):
        return data, [bytes(part) for part in file_slices.file_slices(pieces, offset_bytes)]


@given(sizes=st.lists(st.integers(0, 5 * SMALL), max_size=12), offset_bytes=st.integers(0, 4 * SMALL))
@example(sizes=[SMALL], offset_bytes=0)
@example(sizes=[SMALL - 1, 1, SMALL], offset_bytes=SMALL)
@example(sizes=[SMALL - 1, 2], offset_bytes=SMALL)
@example(sizes=[3, 5 * SMALL], offset_bytes=3 * SMALL - 1)
@example(sizes=[0, 0], offset_bytes=5)
def test_slices_are_the_same_bytes_and_end_on_multiples(sizes: list[int], offset_bytes: int) -> None:
    data, slices = slices_of(sizes, offset_bytes)
    assert b"".join(slices) == data
    position = offset_bytes
    for index, part in enumerate(slices):
        assert 0 < len(part) <= SMALL
        position += len(part)
        assert position % SMALL == 0 or index == len(slices) - 1


def test_a_slice_that_is_whole_in_a_piece_is_not_copied() -> None:
    data = bytearray(3 * SMALL)
    with mock.patch.object(file_slices, "SLICE_BYTES", SMALL):
        slices = list(file_slices.file_slices([memoryview(data)], 0))
    assert [part.obj is data for part in slices] == [True, True, True]


def test_a_slice_is_whole_large_pages() -> None:
    assert file_slices.SLICE_BYTES % LARGE_PAGE_BYTES == 0


def test_a_writer_writes_such_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a section that begins anywhere and comes in odd pieces: 4 MiB to 4 MiB of the file."""
    slice_bytes = file_slices.SLICE_BYTES
    pieces = [bytes([index]) * size for index, size in enumerate([2**20 - 7, 3, 9 * 2**20, 0, 1, 2**19])]
    writes: list[tuple[int, int]] = []
    write = os.pwrite

    def recorded(descriptor: int, data: memoryview, offset: int) -> int:
        writes.append((offset, offset + len(data)))
        return write(descriptor, data, offset)

    with BundleWriter(tmp_path / "x.bundle", family="rwkv", backend="ort") as bundle:
        bundle.add_section("a", b"x" * 5000, media_type="x")
        monkeypatch.setattr(os, "pwrite", recorded)
        place = bundle.add_section("b", iter(pieces), media_type="x")
        monkeypatch.undo()
        stored = bundle.temporary_path.read_bytes()[place.offset_bytes : place.end_bytes]
    assert stored == b"".join(pieces)
    assert place.offset_bytes % slice_bytes
    ends = [end for _, end in writes]
    assert [begin for begin, _ in writes] == [place.offset_bytes, *ends[:-1]]
    assert ends == [slice_bytes, 2 * slice_bytes, place.end_bytes]
