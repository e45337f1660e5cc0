"""Take parsed JSON apart strictly; what is refused, and with which code, is for the caller to say."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_json import json_type_name

JsonObject = dict[str, object]


class JsonReader:
    """Read values of a JSON document; ``refusal(pointer, found, expected)`` makes the error for a bad one."""

    def __init__(self, refusal: Callable[[str, str, str], RowpackError]) -> None:
        self.refusal = refusal

    def member(self, parent: JsonObject, key: str, pointer: str) -> JsonObject:
        """Return the object called ``key`` of the object at ``pointer``."""
        return self.as_object(parent.get(key), f"{pointer}/{key}")

    def as_object(self, value: object, pointer: str) -> JsonObject:
        """Return ``value``, which must be an object."""
        if not isinstance(value, dict):
            raise self.refusal(pointer, json_type_name(value), "an object")
        return value

    def entries(self, parent: JsonObject, key: str, pointer: str, *, most: int) -> list[JsonObject]:
        """Return an array of 1 to ``most`` objects."""
        values = parent.get(key)
        if not isinstance(values, list) or not 1 <= len(values) <= most:
            found = f"{len(values)} entries" if isinstance(values, list) else json_type_name(values)
            raise self.refusal(f"{pointer}/{key}", found, "one entry" if most == 1 else f"1 to {most} entries")
        return [self.as_object(value, f"{pointer}/{key}/{index}") for index, value in enumerate(values)]

    def text(self, parent: JsonObject, key: str, pointer: str, *, wanted: str | None = None) -> str:
        """Return a text, which must be ``wanted`` if that is given."""
        value = parent.get(key)
        if not isinstance(value, str) or (wanted is not None and value != wanted):
            found = repr(value)[:128] if isinstance(value, str) else json_type_name(value)
            raise self.refusal(f"{pointer}/{key}", found, wanted or "a text")
        return value

    def optional_text(self, parent: JsonObject, key: str, pointer: str) -> str | None:
        """Return a text, or None where there is none."""
        return None if parent.get(key) is None else self.text(parent, key, pointer)

    def decoded(self, parent: JsonObject, key: str, pointer: str) -> bytes:
        """Return the bytes of a text in base64."""
        text = self.text(parent, key, pointer)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.refusal(f"{pointer}/{key}", f"{text[:40]!r}: {error}", "base64") from error
