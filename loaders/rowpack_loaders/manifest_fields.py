"""Read typed fields out of the raw manifest, with the JSON pointer of whatever is malformed.

Loading a bundle must not need a schema library, so the few fields a loader relies on are checked here while
they are read; ``rowpack validate`` checks the whole manifest against its schema.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_json import json_pointer, json_type_name


class Fields:
    """One object of the manifest and its place; every getter raises ``manifest_malformed`` with the place."""

    def __init__(self, value: object, pointer: str, where: str) -> None:
        self.pointer = pointer
        self.where = where
        if not isinstance(value, dict):
            raise self._malformed(pointer, value, "an object")
        self.raw: dict[str, object] = value

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self._malformed(self._at(key), value, "a string")
        return value

    def integer(self, key: str, *, minimum: int = 0) -> int:
        """Return an integer of at least ``minimum``."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._malformed(self._at(key), value, f"an integer from {minimum}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return an integer, or None when the key is missing or null."""
        return None if self.raw.get(key) is None else self.integer(key)

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None when the key is missing or null."""
        return None if self.raw.get(key) is None else self.text(key)

    def number(self, key: str) -> float:
        """Return a finite number as float."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._malformed(self._at(key), value, "a number")
        return float(value)

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self._malformed(self._at(key), value, "true or false")
        return value

    def child(self, key: str) -> Fields:
        """Return an object, to read further fields from."""
        return Fields(self._value(key), self._at(key), self.where)

    def optional_child(self, key: str) -> Fields | None:
        """Return an object, or None when the key is missing or null."""
        return None if self.raw.get(key) is None else self.child(key)

    def children(self, key: str) -> Iterator[Fields]:
        """Yield the objects of an array."""
        for index, value in enumerate(self._array(key)):
            yield Fields(value, self._at(key, index), self.where)

    def members(self, key: str) -> Iterator[tuple[str, Fields]]:
        """Yield the members of an object whose values are objects, with their names."""
        named = self.child(key)
        for name in named.raw:
            yield name, named.child(name)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings."""
        values = self._array(key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self._malformed(self._at(key, index), value, "a string")
        return tuple(str(value) for value in values)

    def sizes(self, key: str) -> tuple[int, ...]:
        """Return an array of sizes, none of them free."""
        sizes = []
        for index, size in enumerate(self.shape(key)):
            if isinstance(size, str):
                raise self._malformed(self._at(key, index), size, "a size from 1")
            sizes.append(size)
        return tuple(sizes)

    def shape(self, key: str) -> tuple[int | str, ...]:
        """Return an array of sizes; a string names a free dimension."""
        dimensions: list[int | str] = []
        for index, value in enumerate(self._array(key)):
            if isinstance(value, bool) or not isinstance(value, int | str) or value in (0, ""):
                raise self._malformed(self._at(key, index), value, "a size from 1 or the name of a free one")
            if isinstance(value, int) and value < 0:
                raise self._malformed(self._at(key, index), value, "a size from 1 or the name of a free one")
            dimensions.append(value)
        return tuple(dimensions)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return a string that is one of ``allowed``."""
        value = self.text(key)
        if value not in allowed:
            raise self._malformed(self._at(key), value, " or ".join(allowed))
        return value

    def wrong(self, key: str, expected: str) -> RowpackError:
        """Return the error about a value of ``key`` that has the right type and is wrong all the same."""
        return self._malformed(self._at(key), self.raw.get(key), expected)

    def _array(self, key: str) -> list[object]:
        value = self._value(key)
        if not isinstance(value, list):
            raise self._malformed(self._at(key), value, "an array")
        return value

    def _value(self, key: str) -> object:
        if key not in self.raw:
            raise RowpackError(
                "manifest_malformed",
                "The manifest lacks a key",
                where=f"{self.where}#{self.pointer}",
                found=", ".join(list(self.raw)[:20])[:400] or "no keys",
                expected=key,
            )
        return self.raw[key]

    def _at(self, *parts: str | int) -> str:
        return self.pointer + json_pointer(*parts)

    def _malformed(self, pointer: str, value: object, expected: str) -> RowpackError:
        return RowpackError(
            "manifest_malformed",
            "A value of the manifest has the wrong form",
            where=f"{self.where}#{pointer}",
            found=repr(value)[:80] if isinstance(value, str | int | float) else json_type_name(value),
            expected=expected,
        )
