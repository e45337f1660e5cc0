"""Expand patterns such as ``models/**/*.bundle`` that the shell left alone: quoted, or on a shell that expands none."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from rowpack_loaders.errors import RowpackError


def expand_patterns(paths: Iterable[Path]) -> list[Path]:
    """Return the paths with each pattern replaced by the files it matches, in the order of their names.

    A path that exists is taken as it is, whatever characters it has. Raises ``pattern_without_match``.
    """
    expanded: list[Path] = []
    for path in paths:
        if not glob.has_magic(str(path)) or path.exists():
            expanded.append(path)
            continue
        files = sorted(match for match in _matches(path) if not match.is_dir())
        if not files:
            raise RowpackError(
                "pattern_without_match",
                "No file matches the pattern",
                found=str(path),
                expected="a pattern that matches at least one file",
                remedy="`**` matches folders at any depth; quote the pattern so that the shell leaves it alone",
            )
        expanded += files
    return expanded


def _matches(pattern: Path) -> Iterator[Path]:
    if pattern.is_absolute():
        return Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    return Path().glob(str(pattern))
