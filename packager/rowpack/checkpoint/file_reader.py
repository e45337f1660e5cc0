"""Read byte ranges of files into fresh buffers.

Ranges are read, not memory-mapped: mapped pages count as resident memory of the process until the kernel
drops them, and a build promises to stay small whatever the size of its checkpoint.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.checkpoint.unreadable_file import unreadable_file
from rowpack_loaders.errors import RowpackError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class FileReader:
    """Keep the weight files of one checkpoint open and read ranges of them; safe to use from several
    threads."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._closed = False

    def read(self, path: Path, offset_bytes: int, byte_count: int) -> npt.NDArray[np.uint8]:
        """Return bytes ``[offset_bytes, offset_bytes + byte_count)`` of the file as a new array of shape
        [byte_count].

        Raises ``RowpackError`` with code ``checkpoint_changed`` when the file ends before the range, which
        the checks at opening exclude unless somebody changed the file since, and ``checkpoint_unreadable``
        when it cannot be read.
        """
        import numpy as np

        buffer = np.empty(byte_count, np.uint8)
        view = buffer.data
        filled = 0
        try:
            descriptor = self._open(path)
            while filled < byte_count:
                count = os.preadv(descriptor, [view[filled:]], offset_bytes + filled)
                if not count:
                    break
                filled += count
        except OSError as error:
            raise RowpackError.of(unreadable_file(path, error)) from error
        if filled < byte_count:
            raise RowpackError(
                "checkpoint_changed",
                "the file became shorter while it was read",
                where=str(path),
                found=f"{offset_bytes + filled} bytes",
                expected=f"at least {offset_bytes + byte_count} bytes",
                remedy="Leave the checkpoint alone during a build, and build again",
            )
        return buffer

    def close(self) -> None:
        """Close every file; reading afterwards is a ``ValueError``."""
        with self._lock:
            self._closed = True
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def _open(self, path: Path) -> int:
        with self._lock:
            if self._closed:
                raise ValueError("the checkpoint is closed")
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._descriptors[path]
