"""Change one place of a JSON value: what a hypothesis strategy picks, and what an exhaustive run goes through."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

INTERESTING: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    1.0,
    -0.5,
    1e308,
    "",
    "\0",
    "rows",
    "float32",
    "a" * 300,
    "../x",
    "engine.onnx",
    "weights.safetensors",
    [],
    [[]],
    {},
    {"": None},
    [0] * 40,
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
keys = st.text("abc_/~.", max_size=6)
json_values = st.sampled_from(INTERESTING) | st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every value inside ``value``."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, member in value.items():
            yield from places(member, (*path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from places(member, (*path, index))


def replaced(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of ``value`` with another value at ``path``."""
    changed = copy.deepcopy(value)
    _parent(changed, path)[path[-1]] = new
    return changed


def removed(value: Any, path: Path) -> Any:
    """Return a copy of ``value`` without what is at ``path``."""
    changed = copy.deepcopy(value)
    del _parent(changed, path)[path[-1]]
    return changed


def moved(value: Any, path: Path, source: Path) -> Any:
    """Return a copy of ``value`` with what is at ``source`` also at ``path``."""
    return replaced(value, path, _parent(value, source)[source[-1]])


def _parent(value: Any, path: Path) -> Any:
    for part in path[:-1]:
        value = value[part]
    return value
