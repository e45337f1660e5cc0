"""Read a container strictly: magic, header, section table, trailer.

    bytes 0–7     magic 42 55 4E 44 4C 45 01 00 (older ones: see container_forms)
    bytes 8–15    H, u64 little-endian
    16 … 16+H−1   header, one UTF-8 JSON object, with exactly five keys in format 1
    16+H …        sections; header offsets count from here
    at the end    optional trailer: JSON (P bytes), P as u64 LE, magic 50 52 4F 56 01 00 00 00

Nothing is believed before it is checked, and nothing is allocated from a number that was not. Only regular
files are read, through one read-only descriptor; a FIFO or a device is refused without waiting for it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from rowpack_loaders.container_forms import ContainerForm, check_magic, identify_form
from rowpack_loaders.container_header import Header, SectionRange, check_header
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.strict_json import parse_json_object

TRAILER_MAGIC = bytes.fromhex("50 52 4F 56 01 00 00 00")
PREAMBLE_BYTES = 16
TRAILER_FRAME_BYTES = 16
HEADER_LIMIT_BYTES = 100 * 2**20
TRAILER_LIMIT_BYTES = 16 * 2**20
DEFAULT_SECTION_LIMIT_BYTES = 64 * 2**20

_U64 = struct.Struct("<Q")


class Container:
    """One open bundle file: its checked header, and read access to its sections.

    Use :meth:`open`; the object is a context manager. Reads may come from several threads at once.
    """

    def __init__(self, path: Path, descriptor: int, opened: os.stat_result, header_limit_bytes: int) -> None:
        self.path = path
        self.file_size = opened.st_size
        self._opened = opened
        self._descriptor: int | None = descriptor
        self._mapping: mmap.mmap | None = None
        self.header_bytes = self._read_header(header_limit_bytes)
        self.payload_start = PREAMBLE_BYTES + len(self.header_bytes)
        parsed = parse_json_object(self.header_bytes, where=f"{path}: header")
        self.header: Header = check_header(
            parsed,
            payload_start=self.payload_start,
            file_size=self.file_size,
            where=f"{path}: header#",
            form=identify_form(self._magic, parsed),
        )
        self.check_unchanged()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> Container:
        """Open and check the container at ``path``; raise :class:`RowpackError` when it is not one."""
        path = Path(path)
        descriptor, opened = open_regular_file(path)
        try:
            return cls(path, descriptor, opened, header_limit_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def form(self) -> ContainerForm:
        """Which form of container this is; only format 1 is still written."""
        return self.header.form

    @property
    def family(self) -> str:
        """The model family named by the header."""
        return self.header.family

    @property
    def backend(self) -> str:
        """The backend named by the header."""
        return self.header.backend

    @property
    def sections(self) -> dict[str, SectionRange]:
        """Every section by name, with its absolute byte range."""
        return self.header.sections

    @property
    def sections_end(self) -> int:
        """The absolute offset of the first byte after the last section."""
        return max((section.end_bytes for section in self.sections.values()), default=self.payload_start)

    def section_range(self, name: str) -> SectionRange:
        """Return the byte range of a section, or raise ``section_missing``."""
        try:
            return self.sections[name]
        except KeyError:
            raise RowpackError(
                "section_missing",
                f"The bundle has no section {name!r}",
                where=str(self.path),
                found=", ".join(list(self.sections)[:20]) or "no sections",
                expected=name,
            ) from None

    def read_section(self, name: str, *, limit_bytes: int = DEFAULT_SECTION_LIMIT_BYTES) -> bytes:
        """Return the bytes of a section as stored; refuse one longer than ``limit_bytes`` unread."""
        section = self.section_range(name)
        if section.length_bytes > limit_bytes:
            raise RowpackError(
                "section_too_large",
                f"Section {name!r} is larger than this reader takes into memory",
                where=f"{self.path}: {name}",
                found=f"{section.length_bytes} bytes",
                expected=f"at most {limit_bytes} bytes",
            )
        return self.read_at(section.offset_bytes, section.length_bytes)

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return exactly ``length_bytes`` from an absolute offset; a file that ends early has changed."""
        pieces = []
        remaining = length_bytes
        while remaining:
            with self._readable():
                piece = os.pread(self._open_descriptor(), min(remaining, 2**30), offset_bytes)
            if not piece:
                raise self._changed(f"{length_bytes - remaining} of {length_bytes} bytes at {offset_bytes}")
            pieces.append(piece)
            offset_bytes += len(piece)
            remaining -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(self, buffer: memoryview, offset_bytes: int) -> None:
        """Fill ``buffer`` from an absolute offset; for streaming through one buffer."""
        while buffer:
            with self._readable():
                count = os.preadv(self._open_descriptor(), [buffer], offset_bytes)
            if not count:
                raise self._changed(f"an end at byte {offset_bytes}")
            buffer = buffer[count:]
            offset_bytes += count

    def section_view(self, name: str) -> memoryview:
        """Return a read-only view of a section in the one mapping of the file; nothing is copied.

        Views stay valid after :meth:`close`; the mapping lives until the last of them is gone.
        """
        section = self.section_range(name)
        return memoryview(self._map())[section.offset_bytes : section.end_bytes]

    def mapped_section(self, name: str) -> MappedSection:
        """Return :meth:`section_view` together with where a library finds the same bytes in the file."""
        section = self.section_range(name)
        view = self.section_view(name)
        return MappedSection.of(self.path, self._open_descriptor(), section.offset_bytes, view)

    def section_mapping(self) -> Mapping[str, memoryview]:
        """Return a view of every section by name, all over the same mapping."""
        return {name: self.section_view(name) for name in self.sections}

    def trailer(self) -> dict[str, object] | None:
        """Return the trailer's JSON object, or None when no trailer ends the file.

        The bytes after the last section are a trailer only when the file ends in its magic; a payload that
        happens to end in the magic is not one, because a trailer lies wholly behind the last section.
        """
        frame = self.trailer_range()
        if frame is None:
            return None
        return parse_json_object(self.read_at(frame.offset_bytes, frame.length_bytes), where=f"{self.path}: trailer")

    def trailer_range(self) -> SectionRange | None:
        """Return the absolute range of the trailer's JSON text, or None when there is no trailer."""
        available = self.file_size - self.sections_end
        if available < TRAILER_FRAME_BYTES:
            return None
        frame = self.read_at(self.file_size - TRAILER_FRAME_BYTES, TRAILER_FRAME_BYTES)
        if frame[8:] != TRAILER_MAGIC:
            return None
        (length,) = _U64.unpack_from(frame)
        if not 0 < length <= min(available - TRAILER_FRAME_BYTES, TRAILER_LIMIT_BYTES):
            raise RowpackError(
                "trailer_length_invalid",
                "The trailer's length does not fit between the last section and the end of the file",
                where=f"{self.path}, byte {self.file_size - TRAILER_FRAME_BYTES}",
                found=str(length),
                expected=f"1 to {min(available - TRAILER_FRAME_BYTES, TRAILER_LIMIT_BYTES)}",
            )
        return SectionRange(self.file_size - TRAILER_FRAME_BYTES - length, length)

    def check_unchanged(self) -> None:
        """Raise ``container_changed_while_reading`` when the file was rewritten since it was opened."""
        now = os.fstat(self._open_descriptor())
        if (now.st_size, now.st_mtime_ns) != (self._opened.st_size, self._opened.st_mtime_ns):
            raise self._changed(f"{now.st_size} bytes")

    def close(self) -> None:
        """Close the descriptor and let go of the mapping; closing twice is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._mapping is not None:
            with contextlib.suppress(BufferError):  # views are in use; the last of them frees the mapping
                self._mapping.close()
            self._mapping = None

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Container({str(self.path)!r}, {len(self.sections)} sections, {self.file_size} bytes)"

    def _read_header(self, limit_bytes: int) -> bytes:
        if self.file_size < PREAMBLE_BYTES:
            raise RowpackError(
                "container_too_short",
                "The file is too short to be a bundle",
                where=str(self.path),
                found=f"{self.file_size} bytes",
                expected=f"at least {PREAMBLE_BYTES} bytes",
                remedy="Copy or download the file again",
            )
        preamble = self.read_at(0, PREAMBLE_BYTES)
        self._magic = preamble[:8]
        check_magic(self._magic, f"{self.path}, byte 0")
        (length,) = _U64.unpack_from(preamble, 8)
        _check_header_length(length, limit_bytes, self.file_size, self.path)
        return self.read_at(PREAMBLE_BYTES, length)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise RowpackError(
                "container_closed",
                "The bundle was closed before this read",
                where=str(self.path),
                found="a closed bundle",
                expected="an open one",
                remedy="Keep the bundle open while it is in use",
            )
        return self._descriptor

    def _map(self) -> mmap.mmap:
        if self._mapping is None:
            self.check_unchanged()
            with self._readable():
                self._mapping = mmap.mmap(self._open_descriptor(), self.file_size, access=mmap.ACCESS_READ)
        return self._mapping

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _not_readable(self.path, error) from error

    def _changed(self, found: str) -> RowpackError:
        return RowpackError(
            "container_changed_while_reading",
            "The bundle was changed while it was being read",
            where=str(self.path),
            found=found,
            expected=f"{self.file_size} bytes, unchanged",
            remedy="Publish bundles under a temporary name and rename them; then read again",
        )


def open_regular_file(path: Path) -> tuple[int, os.stat_result]:
    """Open the regular file at ``path`` for reading and return descriptor and status; refuse anything else unopened.

    Raises ``container_not_found``, ``container_not_readable`` or ``container_not_a_regular_file``.
    """
    try:
        # Looked at before it is opened: opening a device can have effects of its own.
        _refuse_special_file(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise RowpackError(
            "container_not_found", "There is no such bundle", where=str(path), found="nothing", expected="a bundle file"
        ) from None
    except OSError as error:
        raise _not_readable(path, error) from error
    except ValueError as error:  # a NUL character in the path
        raise RowpackError(
            "container_not_found",
            "There is no such bundle",
            where=repr(str(path)),
            found="a path with a NUL character",
            expected="the path of a bundle file",
        ) from error
    try:
        opened = os.fstat(descriptor)
        _refuse_special_file(path, opened)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, opened


def _not_readable(path: Path, error: OSError) -> RowpackError:
    return RowpackError(
        "container_not_readable",
        f"The bundle cannot be read: {error.strerror}",
        where=str(path),
        found=str(error.strerror),
        expected="a file that can be read",
        remedy="Check the permissions of the file and of the folders above it, and the disk",
    )


def _refuse_special_file(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    raise RowpackError(
        "container_not_a_regular_file",
        "A bundle is one regular file",
        where=str(path),
        found=kinds.get(stat.S_IFMT(status.st_mode), "a device"),
        expected="a regular file",
    )


def _check_header_length(length: int, limit_bytes: int, file_size: int, path: Path) -> None:
    where = f"{path}, byte 8"
    if length == 0:
        raise RowpackError("header_empty", "The header has no bytes", where=where, found="0", expected="at least 1")
    if length > limit_bytes:
        raise RowpackError(
            "header_too_long",
            "The header is longer than this reader takes",
            where=where,
            found=str(length),
            expected=f"at most {limit_bytes}",
        )
    if length > file_size - PREAMBLE_BYTES:
        raise RowpackError(
            "header_beyond_file",
            "The file ends inside its header",
            where=where,
            found=f"a header of {length} bytes in a file of {file_size}",
            expected=f"at most {file_size - PREAMBLE_BYTES}",
            remedy="Copy or download the file again",
        )
