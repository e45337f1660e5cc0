"""The problem of a file that the system does not let one read."""

from __future__ import annotations

from pathlib import Path

from rowpack_loaders.errors import Problem


def unreadable_file(path: Path, error: OSError) -> Problem:
    """Return ``checkpoint_unreadable`` in the system's words."""
    return Problem(
        "checkpoint_unreadable",
        "the file cannot be read",
        where=str(path),
        found=error.strerror or str(error),
        expected="a file that can be read",
        remedy="Check its permissions and that its disk is there",
    )
