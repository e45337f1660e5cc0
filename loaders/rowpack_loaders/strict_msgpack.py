"""Unpack MessagePack that somebody else wrote, allocating nothing that its bytes do not pay for.

A MessagePack array states its size before its items: five bytes can ask for four thousand million. Here a container
grows as its items are read, one that states more items than bytes are left is refused at once, and the number of values
is bounded, because an empty array takes one byte packed and sixty unpacked. What readers could disagree about is
refused as in :mod:`strict_json`: repeated keys, keys that are not strings, NaN and infinity. So are types that JSON
does not have: binary data and extensions.
"""

from __future__ import annotations

import math
import struct
from typing import NoReturn

MAX_DEPTH = 16
MAX_VALUES = 200_000

_UNSIGNED = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_SIGNED = {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_FLOATS = {0xCA: ">f", 0xCB: ">d"}
_NUMBERS = {tag: struct.Struct(form) for tag, form in (_UNSIGNED | _SIGNED | _FLOATS).items()}
_STRING_SIZES = {0xD9: struct.Struct(">B"), 0xDA: struct.Struct(">H"), 0xDB: struct.Struct(">I")}
_ARRAY_SIZES = {0xDC: struct.Struct(">H"), 0xDD: struct.Struct(">I")}
_MAP_SIZES = {0xDE: struct.Struct(">H"), 0xDF: struct.Struct(">I")}
_SINGLES: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack_msgpack(data: bytes, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> object:
    """Return the one value in ``data``; raise ValueError with what is wrong and at which byte."""
    reader = _Reader(data, max_depth, max_values)
    value = reader.value(0)
    if reader.position != len(data):
        reader.refuse(f"{len(data) - reader.position} bytes behind the value")
    return value


class _Reader:
    """Read one value after the other from ``data``."""

    def __init__(self, data: bytes, max_depth: int, max_values: int) -> None:
        self.data = data
        self.position = 0
        self._max_depth = max_depth
        self._values_left = max_values

    def value(self, depth: int) -> object:
        """Return the value that starts at the position, which moves behind it."""
        self._values_left -= 1
        if self._values_left < 0:
            self.refuse("too many values")
        if depth > self._max_depth:
            self.refuse(f"values nested more than {self._max_depth} deep")
        tag = self._take(1)[0]
        if tag <= 0x7F:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag in _SINGLES:
            return _SINGLES[tag]
        if tag in _NUMBERS:
            return self._number(tag)
        if 0xA0 <= tag <= 0xBF or tag in _STRING_SIZES:
            return self._string(tag & 0x1F if tag <= 0xBF else self._size(_STRING_SIZES[tag]))
        if 0x90 <= tag <= 0x9F or tag in _ARRAY_SIZES:
            return self._array(tag & 0x0F if tag <= 0x9F else self._size(_ARRAY_SIZES[tag]), depth)
        if tag <= 0x8F or tag in _MAP_SIZES:
            return self._map(tag & 0x0F if tag <= 0x8F else self._size(_MAP_SIZES[tag]), depth)
        self.refuse(f"type {tag:#04x}, which JSON does not have")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error about the place the reader is at."""
        raise ValueError(f"{what}, at byte {self.position}")

    def _number(self, tag: int) -> int | float:
        form = _NUMBERS[tag]
        number: int | float = form.unpack(self._take(form.size))[0]
        if isinstance(number, float) and not math.isfinite(number):
            self.refuse("a number that is not finite")
        return number

    def _string(self, size: int) -> str:
        data = self._take(size)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse("a string that is not UTF-8")

    def _array(self, size: int, depth: int) -> list[object]:
        self._check_room(size)
        return [self.value(depth + 1) for _ in range(size)]

    def _map(self, size: int, depth: int) -> dict[str, object]:
        self._check_room(2 * size)
        members: dict[str, object] = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                self.refuse("a key that is no string")
            if key in members:
                self.refuse(f"the key {key[:80]!r} twice")
            members[key] = self.value(depth + 1)
        return members

    def _size(self, form: struct.Struct) -> int:
        size: int = form.unpack(self._take(form.size))[0]
        return size

    def _check_room(self, item_count: int) -> None:
        # Every item has at least one byte.
        if item_count > len(self.data) - self.position:
            self.refuse(f"{item_count} items in {len(self.data) - self.position} bytes")

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            self.refuse(f"{size} bytes wanted and {len(self.data) - self.position} left")
        taken = self.data[self.position : self.position + size]
        self.position += size
        return taken
