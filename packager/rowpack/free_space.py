"""How much a file system has room for, as far as it tells."""

from __future__ import annotations

import os
from pathlib import Path


def free_space_bytes(path: Path) -> int | None:
    """Return the bytes that this user may still write beside ``path``; None where the file system does not tell.

    Raises OSError for a path that is not there.
    """
    state = os.statvfs(path)
    return state.f_bavail * state.f_frsize if state.f_blocks else None
