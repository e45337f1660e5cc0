"""Publish a file whole or not at all: write beside the target, fsync, rename, fsync the folder.

The temporary file is hidden, carries the process id for people, and is locked for as long as its writer
lives. The lock, not the id, tells a stale file from one that is being written: process ids repeat and differ
between containers that share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rowpack_loaders.errors import RowpackError

_MARK = ".rowpack-"
_SUFFIX = ".tmp"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class OutputFile:
    """A temporary file beside ``target``: :meth:`publish` makes it the target, :meth:`discard` removes it.

    Created with the permissions the umask leaves. Symbolic links at the target are replaced, not followed.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        _check_target(target)
        with self.translated_errors():
            remove_stale(target)
            self.temporary_path, self._descriptor = _create_locked(target)
        self._open = True

    def write(self, data: memoryview, offset_bytes: int) -> None:
        """Write all of ``data`` (bytes, one dimension) at an absolute offset."""
        with self.translated_errors():
            while data:
                written = os.pwrite(self._descriptor, data, offset_bytes)
                data = data[written:]
                offset_bytes += written

    def check_free_space(self, length_bytes: int) -> None:
        """Raise ``disk_full`` when the file system has less free space than ``length_bytes``."""
        with self.translated_errors():
            state = os.statvfs(self.temporary_path)
        free_bytes = state.f_bavail * state.f_frsize
        if state.f_blocks and free_bytes < length_bytes:
            raise self._full(f"{free_bytes} bytes free", f"at least {length_bytes} bytes")

    def publish(self) -> None:
        """Make the file durable under the target's name, replacing what was there in one step."""
        with self.translated_errors():
            os.fsync(self._descriptor)
            self.temporary_path.replace(self.target)
            self._close()
            _sync_folder(self.target.parent)

    def discard(self) -> None:
        """Remove the temporary file; harmless after :meth:`publish` and when repeated."""
        if self._open:
            with contextlib.suppress(FileNotFoundError):
                self.temporary_path.unlink()
            self._close()

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn the system's refusals into errors with a code and a remedy."""
        try:
            yield
        except OSError as error:
            raise self._translate(error) from error

    def _close(self) -> None:
        self._open = False
        os.close(self._descriptor)

    def _translate(self, error: OSError) -> RowpackError:
        if error.errno in _FULL:
            return self._full(str(error.strerror), None)
        if error.errno in _FORBIDDEN:
            return RowpackError(
                "output_not_writable",
                f"The output cannot be written: {error.strerror}",
                where=str(self.target),
                remedy="Choose a folder you may write to",
            )
        return RowpackError(
            "output_write_failed",
            f"Writing the output failed: {error.strerror}",
            where=str(self.target),
            remedy="Check the disk and the network share, then build again",
        )

    def _full(self, found: str, expected: str | None) -> RowpackError:
        return RowpackError(
            "disk_full",
            "There is not enough space for the output",
            where=str(self.target.parent),
            found=found,
            expected=expected,
            remedy="Free space or choose another folder; an older file at the target is untouched",
        )


def remove_stale(target: Path) -> list[Path]:
    """Remove temporary files that killed builds of ``target`` left, and return them; live ones are locked."""
    removed = []
    for path in target.parent.iterdir():
        if not (path.name.startswith(f".{target.name}{_MARK}") and path.name.endswith(_SUFFIX)):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed.append(path)
            finally:
                os.close(descriptor)
    return removed


def _create_locked(target: Path) -> tuple[Path, int]:
    while True:
        path = target.with_name(f".{target.name}{_MARK}{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # File systems without locks are written to all the same; nothing is cleaned up on them.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Between creation and lock another build may have taken the file for a stale one.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return path, descriptor
        os.close(descriptor)


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise RowpackError(
            "output_is_directory",
            "The output path is a folder",
            where=str(target),
            expected="the path of a file",
            remedy="Name the file inside the folder",
        )
    if target.exists() and not target.is_file():
        raise RowpackError(
            "output_not_a_file",
            "The output path is a device, FIFO or socket; it would be replaced by a file",
            where=str(target),
            expected="a new path or a regular file",
        )
    if not target.parent.is_dir():
        raise RowpackError(
            "output_folder_missing",
            "The folder of the output does not exist",
            where=str(target.parent),
            remedy="Create the folder first",
        )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems whose folders need no sync
            raise
    finally:
        os.close(descriptor)
