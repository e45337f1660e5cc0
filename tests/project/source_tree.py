"""The project's own files, as the tests in this folder look at them."""

from __future__ import annotations

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
_BINARY_SUFFIXES = {".bin", ".safetensors", ".bundle", ".pyc", ".zst", ".onnx"}


def text_files() -> Iterator[Path]:
    """Yield every text file of the project, with or without version control around it."""
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in _TOP_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix not in _BINARY_SUFFIXES and "__pycache__" not in path.parts:
                yield path


def python_files(*folders: Path) -> Iterator[Path]:
    """Yield the Python files below ``folders``, or of the whole project."""
    for folder in folders or (ROOT / name for name in _TOP_FOLDERS):
        yield from sorted(folder.rglob("*.py"))


def relative(path: Path) -> str:
    """Return ``path`` from the project's root, for messages."""
    return path.relative_to(ROOT).as_posix()
