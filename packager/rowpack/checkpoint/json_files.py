"""Read the small JSON files of a checkpoint; each fault becomes a problem instead of an exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rowpack.checkpoint.lfs_pointer import lfs_pointer_problem
from rowpack.checkpoint.unreadable_file import unreadable_file
from rowpack_loaders.errors import Problem


def read_json_object(path: Path, problems: list[Problem]) -> dict[str, Any] | None:
    """Return the JSON object in a file, or append a problem and return ``None``.

    Codes: ``git_lfs_pointer``, ``checkpoint_unreadable``, ``malformed_json`` (with line and column) and
    ``json_not_an_object``.
    """
    try:
        pointer = lfs_pointer_problem(path)
        content = path.read_bytes()
    except OSError as error:
        problems.append(unreadable_file(path, error))
        return None
    if pointer is not None:
        problems.append(pointer)
        return None
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        problems.append(_malformed(path, f"a byte that is not UTF-8 at offset {error.start}"))
        return None
    except json.JSONDecodeError as error:
        problems.append(_malformed(path, f"{error.msg} at line {error.lineno} column {error.colno}"))
        return None
    except (RecursionError, ValueError) as error:
        problems.append(_malformed(path, f"{type(error).__name__}: {error}"))
        return None
    if not isinstance(value, dict):
        problems.append(
            Problem(
                "json_not_an_object",
                "the file must hold a JSON object",
                where=str(path),
                found=type(value).__name__,
                expected="an object",
                remedy="Fetch the file again, or correct it: its text stands between { and }",
            )
        )
        return None
    return value


def _malformed(path: Path, found: str) -> Problem:
    return Problem(
        "malformed_json",
        "the file is not valid JSON",
        where=str(path),
        found=found,
        expected="UTF-8 JSON",
        remedy="Fetch the file again; an interrupted download often ends in the middle",
    )
