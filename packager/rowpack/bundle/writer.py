"""Write a bundle as a stream: sections one after the other, then manifest, header and trailer around them.

    0        magic, header length, header padded with spaces to the payload start
    4096     manifest.json, and zeros up to the end of its reserve
    …        the other sections, each on a multiple of 4096, zeros between them
    end      trailer

No section is ever held in memory, and the same input gives the same bytes: nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rowpack.bundle.file_slices import file_slices
from rowpack.bundle.output_file import OutputFile
from rowpack.bundle.trailer import build_trailer
from rowpack_loaders.container import PREAMBLE_BYTES
from rowpack_loaders.container_forms import CONTAINER_FORMAT, MAGIC, TASK
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.digests import canonical_json, content_digest, file_digest
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.section_content import EXTENTS_ENCODING, EXTENTS_FEATURE, ExtentsRecord
from rowpack_loaders.section_names import case_twins, section_order, unportable_name_reason
from rowpack_loaders.strict_json import LARGEST_INTEGER

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

ALIGNMENT_BYTES = 4096
DEFAULT_MANIFEST_RESERVE_BYTES = 256 * 2**10
LARGEST_EXACT_INTEGER = 2**53


@dataclass(frozen=True)
class FinishedBundle:
    """A published bundle: its path, size and the two digests."""

    path: Path
    file_size: int
    content_digest: str
    file_digest: str


@dataclass(frozen=True)
class _WrittenSection:
    place: SectionRange
    sha256: str
    media_type: str
    encoding: str
    required: bool
    extents: ExtentsRecord | None

    def manifest_entry(self) -> dict[str, object]:
        entry: dict[str, object] = {
            "media_type": self.media_type,
            "length": self.place.length_bytes,
            "sha256": self.sha256,
            "encoding": self.encoding,
            "required": self.required,
        }
        if self.extents is not None:
            entry["extents"] = asdict(self.extents)
        return entry


class BundleWriter:
    """Stream one bundle to a temporary file beside ``target_path`` and publish it whole, or not at all.

    Sections are added in the fixed order of a bundle (see :func:`section_order`). The manifest comes last
    although it stands first, so space is reserved for it (``manifest_reserve_bytes``) and for the header
    (``payload_start_bytes``, a multiple of 4096). As a context manager it discards what was not finished.
    """

    def __init__(
        self,
        target_path: str | os.PathLike[str],
        *,
        family: str,
        backend: str,
        manifest_reserve_bytes: int = DEFAULT_MANIFEST_RESERVE_BYTES,
        payload_start_bytes: int = ALIGNMENT_BYTES,
    ) -> None:
        if payload_start_bytes % ALIGNMENT_BYTES or payload_start_bytes < ALIGNMENT_BYTES:
            raise ValueError(f"payload_start_bytes must be a multiple of {ALIGNMENT_BYTES}")
        self._family = family
        self._backend = backend
        self._payload_start = payload_start_bytes
        self._manifest_reserve_bytes = _aligned(manifest_reserve_bytes)
        self._end = payload_start_bytes + self._manifest_reserve_bytes
        self._written: dict[str, _WrittenSection] = {}
        self._finished = False
        self._file = OutputFile(Path(target_path))
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="bundle-sha256")

    @property
    def target(self) -> Path:
        """The path the bundle will be published at."""
        return self._file.target

    @property
    def temporary_path(self) -> Path:
        """The file being written; sections already added can be mapped from it."""
        return self._file.temporary_path

    def check_free_space(self, length_bytes: int) -> None:
        """Raise ``disk_full`` when there is less free space than ``length_bytes`` where the bundle is written."""
        self._file.check_free_space(length_bytes)

    def section_range(self, name: str) -> SectionRange:
        """Return the absolute byte range of a section already added."""
        return self._written[name].place

    def add_section(
        self,
        name: str,
        data: bytes | bytearray | memoryview | Iterable[ReadableBuffer],
        *,
        media_type: str,
        encoding: str = "raw",
        required: bool = True,
        length_bytes: int | None = None,
        extents: ExtentsRecord | None = None,
    ) -> SectionRange:
        """Write a section from bytes or a stream of contiguous buffers, and return its absolute byte range.

        ``encoding`` says how the stored bytes are packed (``raw``, ``zstd``, or ``extents`` with its record in
        ``extents``); nothing is packed here. A known ``length_bytes`` lets a full disk be reported before the first
        byte and is checked at the end.
        Raises ValueError for a name that may not be written, a repeated one or one out of order, and
        :class:`RowpackError` (``disk_full``, ``output_not_writable``, …) when the system refuses.
        """
        self._check_name(name)
        start = _aligned(self._end)
        pieces = _as_pieces(data)
        if length_bytes is not None:
            self._file.check_free_space(length_bytes)
        digest = hashlib.sha256()
        position = start
        for part in file_slices(pieces, start):
            hashed = self._hasher.submit(digest.update, part)
            try:
                self._file.write(part, position)
            finally:
                hashed.result()
            position += len(part)
        if length_bytes is not None and position - start != length_bytes:
            raise ValueError(f"section {name!r} has {position - start} bytes, not {length_bytes}")
        place = SectionRange(start, position - start)
        self._written[name] = _WrittenSection(place, digest.hexdigest(), media_type, encoding, required, extents)
        self._end = position
        return place

    def drop_section(self, name: str) -> None:
        """Take back the section that was added last; raises ValueError for any other."""
        if not self._written or name != next(reversed(self._written)):
            raise ValueError(f"section {name!r} is not the last one")
        del self._written[name]
        last = next(reversed(self._written.values()), None)
        self._end = self._payload_start + self._manifest_reserve_bytes if last is None else last.place.end_bytes
        self._file.cut(self._end)

    def finish(self, manifest: Mapping[str, object], provenance: Mapping[str, object]) -> FinishedBundle:
        """Write manifest, header and trailer, make the file durable and rename it over the target.

        ``sections`` and ``content_digest`` of the manifest are filled in here, and ``required_features`` gets what
        the stored form demands of readers. Raises
        ``manifest_exceeds_reserve`` when it does not fit its space, and the errors of :meth:`add_section`;
        the temporary file is then gone and the target as it was.
        """
        try:
            finished = self._finish(manifest, provenance)
        except BaseException:
            self.discard()
            raise
        self._finished = True
        self._hasher.shutdown()
        return finished

    def discard(self) -> None:
        """Remove the temporary file; harmless after :meth:`finish` and when repeated."""
        if not self._finished:
            self._file.discard()
            self._hasher.shutdown()

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _finish(self, manifest: Mapping[str, object], provenance: Mapping[str, object]) -> FinishedBundle:
        complete = {
            **manifest,
            "sections": {name: section.manifest_entry() for name, section in self._written.items()},
        }
        if any(section.encoding == EXTENTS_ENCODING for section in self._written.values()):
            complete["required_features"] = [EXTENTS_FEATURE]
        _refuse_large_integers(complete, "")
        complete["content_digest"] = content_digest(complete)
        stored_manifest = canonical_json(complete)
        if len(stored_manifest) > self._manifest_reserve_bytes:
            raise RowpackError(
                "manifest_exceeds_reserve",
                "The manifest is longer than the space kept for it",
                where=str(self._file.target),
                found=f"{len(stored_manifest)} bytes",
                expected=f"at most {self._manifest_reserve_bytes} bytes",
                remedy="Reserve more with manifest_reserve_bytes",
            )
        manifest_place = SectionRange(self._payload_start, len(stored_manifest))
        places = {MANIFEST_SECTION: manifest_place} | {n: s.place for n, s in self._written.items()}
        manifest_sha256 = hashlib.sha256(stored_manifest).hexdigest()
        preamble = self._preamble(places)
        header_sha256 = hashlib.sha256(preamble).hexdigest()
        digests = {MANIFEST_SECTION: manifest_sha256} | {n: s.sha256 for n, s in self._written.items()}
        whole_digest = file_digest(header_sha256, places, digests, self._payload_start)
        trailer = build_trailer(
            header_sha256=header_sha256,
            manifest_sha256=manifest_sha256,
            content_digest=str(complete["content_digest"]),
            file_digest=whole_digest,
            provenance=provenance,
        )
        end = max(place.end_bytes for place in places.values())
        self._file.write(memoryview(stored_manifest), self._payload_start)
        self._file.write(memoryview(preamble), 0)
        self._file.write(memoryview(trailer), end)
        self._file.publish()
        return FinishedBundle(self._file.target, end + len(trailer), str(complete["content_digest"]), whole_digest)

    def _preamble(self, places: Mapping[str, SectionRange]) -> bytes:
        offsets = {
            name: {"offset": place.offset_bytes - self._payload_start, "length": place.length_bytes}
            for name, place in places.items()
        }
        header = self._header_text(offsets)
        length = self._payload_start - PREAMBLE_BYTES
        return MAGIC + struct.pack("<Q", length) + header.ljust(length, b" ")

    def _header_text(self, offsets: Mapping[str, Mapping[str, int]]) -> bytes:
        header = {
            "format": CONTAINER_FORMAT,
            "family": self._family,
            "task": TASK,
            "backend": self._backend,
            "sections": offsets,
        }
        return json.dumps(header, separators=(",", ":")).encode("ascii")

    def _check_name(self, name: str) -> None:
        reason = unportable_name_reason(name)
        if reason is not None or name == MANIFEST_SECTION:
            raise ValueError(f"section name {name!r}: {reason or 'the manifest is written by finish()'}")
        if name in self._written or case_twins([*self._written, name]) is not None:
            raise ValueError(f"section {name!r} is added twice")
        last = max(map(section_order, self._written), default=section_order(MANIFEST_SECTION))
        if section_order(name) < last:
            raise ValueError(f"section {name!r} belongs before {last[1]!r}")
        # The longest that the header can become: every number at its largest.
        largest = {"offset": LARGEST_INTEGER, "length": LARGEST_INTEGER}
        longest = dict.fromkeys((MANIFEST_SECTION, *self._written, name), largest)
        room = self._payload_start - PREAMBLE_BYTES
        needed = len(self._header_text(longest))
        if needed > room:
            raise RowpackError(
                "header_exceeds_reserve",
                "The section table is longer than the space kept for the header",
                where=str(self._file.target),
                found=f"up to {needed} bytes for {len(longest)} sections",
                expected=f"at most {room} bytes",
                remedy="Reserve more with payload_start_bytes",
            )


def _aligned(offset_bytes: int) -> int:
    return -(-offset_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _as_pieces(data: bytes | bytearray | memoryview | Iterable[ReadableBuffer]) -> Iterator[memoryview]:
    for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
        view = memoryview(piece)
        if view.nbytes:
            yield view.cast("B")


def _refuse_large_integers(value: object, pointer: str) -> None:
    """Raise ValueError for an integer that a reader in JavaScript would round."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            _refuse_large_integers(member, f"{pointer}/{key}")
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            _refuse_large_integers(member, f"{pointer}/{index}")
    elif isinstance(value, int) and abs(value) > LARGEST_EXACT_INTEGER:
        raise ValueError(f"the manifest's integer at {pointer} is above 2^53")
