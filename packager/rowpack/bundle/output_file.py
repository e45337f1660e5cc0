"""Publish a file whole or not at all: write beside the target, fsync, rename, fsync the folder.

A target has one temporary file, hidden beside it and locked for as long as its writer lives. So the lock keeps a
second writer of the same target away, and tells a file that a killed writer left from one that is being written:
process ids could not, they repeat and differ between containers that share a folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rowpack.bundle.write_back import WriteBack
from rowpack.free_space import free_space_bytes
from rowpack_loaders.errors import RowpackError

_SUFFIX = ".rowpack-part"
_ATTEMPTS = 100
"""More than enough: an attempt fails only while another process looks at the same name in the same instant."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class OutputFile:
    """A temporary file beside ``target``: :meth:`publish` makes it the target, :meth:`discard` removes it.

    Created with the permissions the umask leaves. Symbolic links at the target are replaced, not followed. What is
    written goes to the disk meanwhile, unless ``will_publish`` is false. Raises RowpackError ``output_busy`` while
    another process writes the same target, and what the system refuses, which it may tell some writes later.
    """

    def __init__(self, target: Path, *, will_publish: bool = True) -> None:
        self.target = target
        _check_target(target)
        with self.translated_errors():
            self.temporary_path, self._descriptor = _create_locked(target)
        self._will_publish = will_publish
        self._write_back = WriteBack(self._descriptor)
        self._open = True

    def write(self, data: memoryview, offset_bytes: int) -> None:
        """Write all of ``data`` (bytes, one dimension) at an absolute offset."""
        with self.translated_errors():
            while data:
                written = os.pwrite(self._descriptor, data, offset_bytes)
                data = data[written:]
                offset_bytes += written
                if self._will_publish:
                    self._write_back.wrote(written)

    def cut(self, length_bytes: int) -> None:
        """Forget everything from ``length_bytes`` on."""
        with self.translated_errors():
            os.ftruncate(self._descriptor, length_bytes)

    def check_free_space(self, length_bytes: int) -> None:
        """Raise ``disk_full`` when the file system has less free space than ``length_bytes``."""
        with self.translated_errors():
            free_bytes = free_space_bytes(self.temporary_path)
        if free_bytes is not None and free_bytes < length_bytes:
            raise self._full(f"{free_bytes} bytes free", f"at least {length_bytes} bytes")

    def publish(self) -> None:
        """Make the file durable under the target's name, replacing what was there in one step."""
        with self.translated_errors():
            self._write_back.finish()
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
        try:
            self._write_back.stop()
        finally:
            os.close(self._descriptor)

    def _translate(self, error: OSError) -> RowpackError:
        if error.errno in _FULL:
            return self._full(str(error.strerror), "room for the whole output")
        if error.errno in _FORBIDDEN:
            return RowpackError(
                "output_not_writable",
                "The output cannot be written",
                where=str(self.target),
                found=str(error.strerror),
                expected="a folder that can be written to",
                remedy="Choose a folder you may write to",
            )
        return RowpackError(
            "output_write_failed",
            "Writing the output failed",
            where=str(self.target),
            found=str(error.strerror),
            expected="a file that is written whole",
            remedy="Check the disk and the network share, then build again",
        )

    def _full(self, found: str, expected: str) -> RowpackError:
        return RowpackError(
            "disk_full",
            "There is not enough space for the output",
            where=str(self.target.parent),
            found=found,
            expected=expected,
            remedy="Free space or choose another folder; an older file at the target is untouched",
        )


def remove_stale(target: Path) -> list[Path]:
    """Remove what killed writers of ``target`` and of its companions (``target.…``) left; live ones are locked."""
    removed = []
    for path in target.parent.iterdir():
        if not (path.name.startswith(f".{target.name}.") and path.name.endswith(_SUFFIX)):
            continue
        with contextlib.suppress(OSError), _locked(path) as descriptor:
            # Between opening and lock its writer may have published it, and another taken the name.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                path.unlink()
                removed.append(path)
    return removed


def _create_locked(target: Path) -> tuple[Path, int]:
    """Create and lock the temporary file of ``target``; raise ``output_busy`` when somebody else holds it."""
    path = target.with_name(f".{target.name}{_SUFFIX}")
    for _ in range(_ATTEMPTS):
        remove_stale(target)
        try:
            descriptor = _create(path)
        except FileExistsError:
            if _is_held(path):
                break
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:
            # A file system without locks: writers stay apart by names of their own, and nothing is cleaned up.
            os.close(descriptor)
            path.unlink()
            path = target.with_name(f".{target.name}.{secrets.token_hex(8)}{_SUFFIX}")
            return path, _create(path)
        # Between creation and lock another process may have taken the file for a stale one.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return path, descriptor
        os.close(descriptor)
    raise RowpackError(
        "output_busy",
        "Another process is writing this output",
        where=str(target),
        found=f"{path.name}, which is locked",
        expected="one writer at a time",
        remedy="Wait until it has ended, or name another output",
    )


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _is_held(path: Path) -> bool:
    """Tell whether another process has ``path`` locked; one that is gone by now is not."""
    try:
        with _locked(path):
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock of an existing file, open; raise OSError when it is held elsewhere or is no file to lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_target(target: Path) -> None:
    if target.is_dir():
        raise RowpackError(
            "output_is_directory",
            "The output path is a folder",
            where=str(target),
            found="a folder",
            expected="the path of a file",
            remedy="Name the file inside the folder",
        )
    if target.exists() and not target.is_file():
        raise RowpackError(
            "output_not_a_file",
            "The output path is a device, FIFO or socket; it would be replaced by a file",
            where=str(target),
            found="something that is no regular file",
            expected="a new path or a regular file",
            remedy="Name a new file",
        )
    if not target.parent.is_dir():
        raise RowpackError(
            "output_folder_missing",
            "The folder of the output does not exist",
            where=str(target.parent),
            found="a file" if target.parent.exists() else "nothing",
            expected="a folder",
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
