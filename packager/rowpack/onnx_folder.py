"""Write a folder of files whole: each beside its place first, then renamed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from rowpack.bundle.output_file import OutputFile


def write_files(folder: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> list[Path]:
    """Write every stream of ``files`` into ``folder`` (made when missing); publish all after all are complete.

    Raises RowpackError as the bundle writer does; nothing half-written is left, nor a folder that was made for it.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    opened: list[OutputFile] = []
    try:
        for name, pieces in files.items():
            output = OutputFile(folder / name)
            opened.append(output)
            position = 0
            for piece in pieces:
                output.write(memoryview(piece), position)
                position += len(piece)
        for output in opened:
            output.publish()
    except BaseException:
        for output in opened:
            output.discard()
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return [folder / name for name in files]
