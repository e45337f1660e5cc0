"""One section of a bundle as it lies in its file: a mapped view, and where a library finds the same bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.safetensors_header import TensorEntry, parse_header


@dataclass(frozen=True)
class MappedSection:
    """``view`` is a read-only mapping of ``offset_bytes …`` of the file ``path``, which had ``identity`` then."""

    path: Path
    offset_bytes: int
    view: memoryview
    identity: tuple[int, int]

    @staticmethod
    def of(path: Path, file_descriptor: int, offset_bytes: int, view: memoryview) -> MappedSection:
        """Describe a view of the open file ``file_descriptor``; ``path`` is resolved, so links may change later."""
        status = os.fstat(file_descriptor)
        return MappedSection(path.resolve(), offset_bytes, view, (status.st_dev, status.st_ino))

    @cached_property
    def tensors(self) -> dict[str, TensorEntry]:
        """What the safetensors header of the section says, read on first use; raises its ``safetensors_…`` errors."""
        where = f"{self.path}, section at byte {self.offset_bytes}"
        return parse_header(self.view, total_bytes=len(self.view), where=where)

    def ask_for_large_pages(self, tables: Iterable[str] = ()) -> None:
        """Let the system read the file in pages of 2 MiB, where it can, once it has to read it from the disk.

        Weights are then there in half the time or less, and the processor finds them by fewer translations. Of the
        tensors ``tables`` single rows are read, here and there, and each would bring 2 MiB from the disk.
        """
        mapping = self.view.obj
        if not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_HUGEPAGE"):
            return
        import numpy as np

        start = np.frombuffer(self.view, np.uint8).ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
            for name in tables:
                entry = self.tensors[name]
                first = -(-(start + entry.offset_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
                length = (start + entry.end_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
                if length > 0:
                    mapping.madvise(mmap.MADV_NOHUGEPAGE, first, length)

    def give_back_pages(self) -> None:
        """Let the system take the pages that were read: they stay in its cache, and come back when they are read."""
        mapping = self.view.obj
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def check_in_place(self) -> None:
        """Raise ``bundle_replaced`` when ``path`` no longer names the mapped file."""
        try:
            status = self.path.stat()
            found = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            found = (-1, -1)
        if found != self.identity:
            raise RowpackError(
                "bundle_replaced",
                "The bundle was replaced or removed while it was being loaded",
                where=str(self.path),
                found="another file" if found != (-1, -1) else "no file",
                expected="the file that was opened",
                remedy="Load the bundle again",
            )
