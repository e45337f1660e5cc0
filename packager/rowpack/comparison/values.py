"""Compare two JSON values and tell where they part, by JSON pointers."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack.comparison.difference import Difference, shortened
from rowpack_loaders.strict_json import json_pointer

MISSING = object()

_NAMING_KEYS = ("name", "input", "file", "kind", "id")
"""Keys by which the objects of a list are told apart: tensors, states, checkpoint files, golden cases, tokens."""


def value_differences(part: str, pointer: str, first: object, second: object) -> Iterator[Difference]:
    """Yield a difference for every place at which ``first`` and ``second`` part.

    Lists of objects with names are compared by them, lists of one length item by item, others as a whole; a missing
    key counts as nothing.
    """
    naming_key = _naming_key(first, second)
    if naming_key is not None:
        yield from _named_differences(part, pointer, naming_key, first, second)
        return
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            place = pointer + json_pointer(key)
            yield from value_differences(part, place, first.get(key, MISSING), second.get(key, MISSING))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(part, f"{pointer}/{index}", one, other)
    elif first is MISSING:
        yield Difference(part, pointer, "only the second has it", None, shortened(second))
    elif second is MISSING:
        yield Difference(part, pointer, "only the first has it", shortened(first), None)
    elif not _same(first, second):
        yield Difference(part, pointer, "differs", shortened(first), shortened(second))


def _naming_key(first: object, second: object) -> str | None:
    """Return the key that names every object of both lists once, or None."""
    if not (isinstance(first, list) and isinstance(second, list) and first and second):
        return None
    for key in _NAMING_KEYS:
        names = [[item.get(key) if isinstance(item, dict) else None for item in side] for side in (first, second)]
        if all(None not in side and len(set(map(str, side))) == len(side) for side in names):
            return key
    return None


def _named_differences(part: str, pointer: str, key: str, first: object, second: object) -> Iterator[Difference]:
    sides = [{str(item[key]): item for item in side} for side in (first, second) if isinstance(side, list)]
    yield from value_differences(part, pointer, sides[0], sides[1])
    common = [name for name in sides[0] if name in sides[1]]
    if common != [name for name in sides[1] if name in sides[0]]:
        yield Difference(part, pointer, "is in another order")


def _same(first: object, second: object) -> bool:
    # True == 1 == 1.0 in Python, and they are three different values in a manifest.
    return type(first) is type(second) and first == second
