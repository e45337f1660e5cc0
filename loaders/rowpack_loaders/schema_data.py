"""Find the schemas and the table of error codes, in an installed wheel or in a source checkout."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

_IN_WHEEL = Path(__file__).parent / "schema"
_IN_CHECKOUT = Path(__file__).parents[2] / "schema"
_SUFFIX = ".schema.json"


def schema_folder() -> Path:
    """Return the folder of the schemas: ``rowpack_loaders/schema`` in a wheel, else the checkout's."""
    return _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT


def schema_names() -> tuple[str, ...]:
    """Return the names that :func:`load_schema` takes, sorted."""
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in schema_folder().glob(f"*{_SUFFIX}")))


@cache
def load_schema(name: str) -> dict[str, object]:
    """Return the JSON Schema called ``name`` (``manifest``, ``runtime.rwkv``, …), or raise KeyError."""
    path = schema_folder() / f"{name}{_SUFFIX}"
    if name not in schema_names():
        raise KeyError(name)
    schema: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return schema


@cache
def error_codes() -> dict[str, dict[str, str]]:
    """Return the meaning and the remedy of every error code."""
    table: dict[str, dict[str, dict[str, str]]] = json.loads(
        (schema_folder() / "errors.json").read_text(encoding="utf-8")
    )
    return table["codes"]
