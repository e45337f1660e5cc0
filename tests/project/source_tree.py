"""The project's own files, as the tests in this folder look at them."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"rowpack": ROOT / "packager" / "rowpack", "rowpack_loaders": ROOT / "loaders" / "rowpack_loaders"}

_TOP_FOLDERS = (
    ".ci",
    "benchmarks",
    "docs",
    "loaders",
    "packager",
    "requirements",
    "schema",
    "scripts",
    "tests",
)


def text_files() -> Iterator[tuple[Path, str]]:
    """Yield every file of the project that is UTF-8 text, with its text; needs no version control around it."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in _TOP_FOLDERS:
        files += [path for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    for path in files:
        with contextlib.suppress(UnicodeDecodeError):
            yield path, path.read_text("utf-8")


def python_files(*folders: Path) -> Iterator[Path]:
    """Yield the Python files below ``folders``, or of the whole project."""
    for folder in folders or (ROOT / name for name in _TOP_FOLDERS):
        yield from sorted(folder.rglob("*.py"))


def relative(path: Path) -> str:
    """Return ``path`` from the project's root, for messages."""
    return path.relative_to(ROOT).as_posix()


def called_name(function: ast.expr) -> str:
    """Return the last part of the name that a call is made by."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
