"""Put a stored vector on the disk, whatever kind of file it is, and change it under a reader where it says so."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vector_recipes import build

VECTORS = Path(__file__).resolve().parents[2] / "schema" / "vectors"
BAD = VECTORS / "bad"


def vector_names() -> list[str]:
    """Return the names of the stored vectors."""
    return sorted(path.name for path in BAD.iterdir())


def stored(name: str, file: str) -> dict[str, Any]:
    """Return ``recipe.json`` or ``expected.json`` of a vector."""
    value: dict[str, Any] = json.loads((BAD / name / file).read_text(encoding="utf-8"))
    return value


@contextmanager
def materialised(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Yield a function that returns the path of a vector's file in ``folder``, ready to be read once more."""
    recipe = stored(name, "recipe.json")
    base = (VECTORS / recipe["base"]).read_bytes() if recipe["base"] else b""
    path = folder / "x.bundle"
    kind = recipe["kind"]
    if kind in CHANGES_WHILE_READ:
        pread = os.pread

        def unread() -> Path:
            path.write_bytes(base)
            change_after_first_read(path, CHANGES_WHILE_READ[kind], pread, monkeypatch)
            return path

        yield unread
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(str(path))
            yield lambda: path
    elif kind == "device":
        yield lambda: Path("/dev/null")
    elif kind == "file":
        build(recipe["pieces"], base, path)
        yield lambda: path
    else:
        (folder / "base.bundle").write_bytes(base)
        KINDS[kind](path, folder / "base.bundle")
        yield lambda: path


def grow(path: Path) -> None:
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b"\0")


def halve(path: Path) -> None:
    """Cut half of the file off."""
    os.truncate(path, path.stat().st_size // 2)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "directory": lambda path, base: path.mkdir(),
    "fifo": lambda path, base: os.mkfifo(path),
    "missing": lambda path, base: None,
    "dangling_link": lambda path, base: path.symlink_to("nothing"),
    "link_loop": lambda path, base: path.symlink_to(path),
    "symbolic_link": lambda path, base: path.symlink_to(base),
    "hard_link": lambda path, base: path.hardlink_to(base),
}
CHANGES_WHILE_READ: dict[str, Callable[[Path], None]] = {"changed_while_read": grow, "cut_while_read": halve}


def change_after_first_read(
    path: Path,
    change: Callable[[Path], None],
    pread: Callable[[int, int, int], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Change the file right after something was read from it, as a writer in another process might."""
    done = False

    def read_and_change(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal done
        data = pread(descriptor, length, offset)
        if not done:
            done = True
            change(path)
        return data

    monkeypatch.setattr(os, "pread", read_and_change)
