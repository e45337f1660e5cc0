"""Recognise git-LFS pointers: small text files that stand for large ones that were never fetched."""

from __future__ import annotations

import re
from pathlib import Path

from rowpack_loaders.errors import Problem

_PREFIX = b"version https://git-lfs"
_LONGEST_POINTER_BYTES = 1024


def lfs_pointer_problem(path: Path) -> Problem | None:
    """Return a problem that names the pointer and how to fetch the file it stands for, or ``None``.

    A pointer is a text of about 130 bytes: a version line, ``oid sha256:…`` and ``size N``.
    """
    byte_count = path.stat().st_size
    if not len(_PREFIX) <= byte_count <= _LONGEST_POINTER_BYTES:
        return None
    text = path.read_bytes()
    if not text.startswith(_PREFIX):
        return None
    size = re.search(rb"^size (\d+)$", text, re.MULTILINE)
    return Problem(
        "git_lfs_pointer",
        "this is a git-LFS pointer, not the file it stands for",
        where=str(path),
        found=f"a pointer of {byte_count} bytes",
        expected=f"{int(size[1])} bytes" if size else "the file's content",
        remedy="Run `git lfs pull` in the folder, or download the repository with `hf download`",
    )
