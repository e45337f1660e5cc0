"""The published vectors, read with the loader's reader: each good one gives its content, each bad one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from extent_vectors import BAD, GOOD, PATH, text

from rowpack_loaders import RowpackError
from rowpack_loaders.extents import ExtentContent, ReadInto, parse_extents

VECTORS: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
BASE = bytes.fromhex(VECTORS["base"])


def reader(data: bytes) -> ReadInto:
    """Return what fills buffers from ``data``, and fails where a file would end."""

    def read(buffer: memoryview, offset_bytes: int) -> None:
        part = data[offset_bytes : offset_bytes + len(buffer)]
        assert len(part) == len(buffer), "read beyond the section"
        buffer[:] = part

    return read


def opened(stored: bytes) -> ExtentContent:
    """Return the content of a stored section over the vectors' base."""
    table = parse_extents(reader(stored), len(stored), len(BASE), where="x")
    return ExtentContent(table, reader(stored), reader(BASE))


def test_the_file_is_what_the_script_makes() -> None:
    assert PATH.read_text("utf-8") == text()
    assert [case["name"] for case in VECTORS["good"]] == list(GOOD)
    assert [case["name"] for case in VECTORS["bad"]] == list(BAD)


@pytest.mark.parametrize("case", VECTORS["good"], ids=lambda case: case["name"])
def test_a_good_section_gives_its_content_at_every_place(case: dict[str, str]) -> None:
    content, expected = opened(bytes.fromhex(case["stored"])), bytes.fromhex(case["content"])
    assert content.length_bytes == len(expected)
    for start in range(len(expected) + 1):
        for end in range(start, len(expected) + 1):
            buffer = bytearray(end - start)
            content.read_into(memoryview(buffer), start)
            assert bytes(buffer) == expected[start:end]
    with pytest.raises(ValueError, match="bytes at"):
        content.read_into(memoryview(bytearray(1)), len(expected))
    with pytest.raises(ValueError, match="bytes at"):
        content.read_into(memoryview(bytearray(1)), -1)


@pytest.mark.parametrize("case", VECTORS["bad"], ids=lambda case: case["name"])
def test_a_bad_section_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(RowpackError) as caught:
        opened(bytes.fromhex(case["stored"]))
    assert caught.value.code == case["code"]
    assert caught.value.problem.found
    assert caught.value.problem.expected


def test_every_flipped_bit_of_a_table_is_refused_or_gives_another_content() -> None:
    stored, expected = GOOD["in turn"]
    table_bytes = 24 + 4 * 24
    for bit in range(8 * table_bytes):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            content = opened(bytes(damaged))
        except RowpackError as error:
            assert error.code == "extents_malformed"
            continue
        buffer = bytearray(content.length_bytes)
        content.read_into(memoryview(buffer), 0)
        assert bytes(buffer) != expected
