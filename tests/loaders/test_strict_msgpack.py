"""MessagePack as the msgpack library packs it, and each thing that would cost memory or be read in two ways."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowpack_loaders.strict_msgpack import MAX_DEPTH, unpack_msgpack

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=30,
)


@given(values)
def test_what_the_library_packs_is_unpacked_alike(value: Any) -> None:
    assert unpack_msgpack(msgpack.packb(value)) == value


@pytest.mark.parametrize("value", [["x"] * 70_000, {str(index): index for index in range(70_000)}, "a" * 70_000])
def test_the_widest_sizes_are_read(value: Any) -> None:
    assert unpack_msgpack(msgpack.packb(value)) == value


def test_single_precision_is_read() -> None:
    assert unpack_msgpack(msgpack.packb(1.5, use_single_float=True)) == 1.5


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 left"),
    "a byte too many": (b"\x01\x02", "1 bytes behind"),
    "a number cut": (b"\xcd\x01", "1 left"),
    "a string cut": (b"\xa5abc", "3 left"),
    "not UTF-8": (b"\xa1\xff", "UTF-8"),
    "a key twice": (b"\x82\xa1a\x01\xa1a\x02", "'a' twice"),
    "a number as key": (b"\x81\x01\x01", "no string"),
    "an array as key": (b"\x81\x90\x01", "no string"),
    "NaN": (b"\xcb" + struct.pack(">d", float("nan")), "not finite"),
    "infinity": (b"\xca" + struct.pack(">f", float("-inf")), "not finite"),
    "binary data": (b"\xc4\x01a", "0xc4"),
    "an extension": (b"\xd4\x01a", "0xd4"),
    "a time stamp": (b"\xd6\xff\0\0\0\0", "0xd6"),
    "the reserved type": (b"\xc1", "0xc1"),
    "nested too deep": (b"\x91" * (MAX_DEPTH + 2), "deep"),
    "four billion items": (b"\xdd\xff\xff\xff\xff", "4294967295 items"),
    "four billion pairs": (b"\xdf\xff\xff\xff\xff", "8589934590 items"),
    "four billion characters": (b"\xdb\xff\xff\xff\xff", "4294967295 bytes"),
    "too many values": (b"\xdd" + struct.pack(">I", 200_001) + bytes(200_001), "too many values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_bytes_are_refused_with_the_reason(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        unpack_msgpack(data)


def test_memory_is_paid_for_by_bytes() -> None:
    # Arrays in arrays, each of which says that all bytes behind it are its items; then empty ones.
    size = 4_000_000
    nested = b"".join(b"\xdd" + struct.pack(">I", size - 1000) for _ in range(MAX_DEPTH)) + bytes(size)
    empty = b"\xdd" + struct.pack(">I", size) + b"\x90" * size
    tracemalloc.start()
    for bomb in (nested, empty):
        with pytest.raises(ValueError, match="too many values"):
            unpack_msgpack(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 2**20
