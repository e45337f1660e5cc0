"""Finding what two plans share: whatever is found reads back byte for byte, and long shared ranges are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowpack.bundle.shared_extents import (
    BLOCK_BYTES,
    SMALLEST_COPY_BYTES,
    SharedExtents,
    find_shared_extents,
    mapped_bytes,
    stored_pieces,
)
from rowpack_loaders.extents import ExtentContent, parse_extents

Bytes = npt.NDArray[np.uint8]


def noise(length: int, seed: int) -> Bytes:
    """Return bytes as weights are: no two ranges alike."""
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)


def round_trip(content: Bytes, base: Bytes) -> SharedExtents:
    """Encode, decode, compare."""
    shared = find_shared_extents(content, base)
    stored = b"".join(bytes(piece) for piece in stored_pieces(shared, content))
    assert len(stored) == shared.stored_bytes

    def reader(data: bytes) -> Callable[[memoryview, int], None]:
        def read(buffer: memoryview, offset_bytes: int) -> None:
            buffer[:] = data[offset_bytes : offset_bytes + len(buffer)]

        return read

    base_bytes = base.tobytes()
    table = parse_extents(reader(stored), len(stored), len(base_bytes), where="x")
    rebuilt = bytearray(table.length_bytes)
    ExtentContent(table, reader(stored), reader(base_bytes)).read_into(memoryview(rebuilt), 0)
    assert bytes(rebuilt) == content.tobytes()
    return shared


def test_weights_at_other_places_and_in_another_order_are_found() -> None:
    weights = [noise(40_000 + 8 * index, index) for index in range(6)]
    base = np.concatenate([noise(1000, 90), *weights, noise(3000, 91)])
    content = np.concatenate([noise(2048, 92), weights[3], weights[0], noise(800, 93), weights[5], weights[1]])
    shared = round_trip(content, base)
    assert shared.copied_bytes >= sum(len(weights[index]) for index in (3, 0, 5, 1))
    assert len([extent for extent in shared.extents if extent.is_copy]) == 4


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
def test_short_contents_and_bases(length: int) -> None:
    for base_length in (0, 10, BLOCK_BYTES, 5 * BLOCK_BYTES):
        round_trip(noise(length, 1), noise(base_length, 2))


def test_equal_plans_are_one_copy() -> None:
    base = noise(100_000, 1)
    shared = round_trip(base, base)
    assert [(extent.is_copy, extent.length_bytes) for extent in shared.extents] == [(True, 100_000)]


def test_zeros_and_repetitions_do_not_mislead() -> None:
    base = np.concatenate([np.zeros(200_000, np.uint8), np.tile(noise(64, 1), 2000), noise(20_000, 2)])
    shared = round_trip(np.concatenate([noise(64, 3), np.tile(noise(64, 1), 1500), noise(20_000, 2)]), base)
    assert shared.copied_bytes >= 20_000


def test_the_base_is_not_copied_more_than_twice_over() -> None:
    base = noise(50_000, 1)
    shared = round_trip(np.concatenate([base, base, base]), base)
    assert shared.copied_bytes <= 2 * len(base)


def test_what_is_too_short_to_be_worth_an_extent_stays_literal() -> None:
    base = noise(20 * BLOCK_BYTES, 1)
    part = base[3 * BLOCK_BYTES : 3 * BLOCK_BYTES + SMALLEST_COPY_BYTES - 8]
    assert round_trip(np.concatenate([noise(256, 2), part, noise(256, 3)]), base).copied_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 20_000)), min_size=1, max_size=6),
    st.lists(st.integers(0, 300), min_size=1, max_size=6),
)
def test_any_mixture_reads_back(cuts: list[tuple[int, int]], gaps: list[int]) -> None:
    base = noise(60_000, 7)
    parts = []
    for index, (start, length) in enumerate(cuts):
        parts += [noise(gaps[index % len(gaps)], 100 + index), base[start : start + length]]
    round_trip(np.concatenate(parts), base)


def test_a_range_of_a_file_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert mapped_bytes(path, 3, 4).tobytes() == b"3456"
    assert mapped_bytes(path, 3, 0).tobytes() == b""
