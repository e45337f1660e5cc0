"""The rule about digests: every section is read once, several at a time, through two buffers each.

SHA-256 takes one piece after the other, so a bundle is digested as fast as its largest section; while one piece is
hashed the next is read. Memory does not depend on the size of the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.errors import Problem
from rowpack_loaders.validation.subject import Finding, Rule, Subject

PIECE_BYTES = 2 * 2**20
MOST_THREADS = 8


def section_digests_match(subject: Subject) -> Iterator[Finding]:
    """The stored bytes of every section have the SHA-256 that the manifest gives.

    The manifest's own is in the trailer.
    """
    digests = _SectionDigests(subject).compute()
    subject.section_sha256 = digests
    for name, entry in subject.manifest_fields.members("sections"):
        if name in digests and digests[name] != entry.text("sha256"):
            yield Problem(
                "section_digest_mismatch",
                "A section does not have the digest that the manifest gives",
                where=name,
                found=digests[name],
                expected=entry.text("sha256")[:80],
                remedy="The file was damaged or changed: build or copy it again",
            )


class _SectionDigests:
    """Digest all sections of one container; an error or an interruption ends the work of every thread."""

    def __init__(self, subject: Subject) -> None:
        self._container = subject.container
        self._progress = subject.progress
        self._places = subject.container.sections
        self._total_bytes = sum(place.length_bytes for place in self._places.values())
        self._done_bytes = 0
        self._telling = threading.Lock()
        self._given_up = threading.Event()

    def compute(self) -> dict[str, str]:
        """Return the digest of each section by name; raise what reading raises."""
        # The largest first: it decides when the last thread is done.
        names = sorted(self._places, key=lambda name: -self._places[name].length_bytes)
        thread_count = min(MOST_THREADS, os.cpu_count() or 1)
        with (
            ThreadPoolExecutor(thread_count, "validate-sha256") as hashers,
            ThreadPoolExecutor(thread_count, "validate-read") as readers,
        ):
            work = [hashers.submit(self._digest, self._places[name], readers) for name in names]
            try:
                return {name: future.result() for name, future in zip(names, work, strict=True)}
            except BaseException:
                self._given_up.set()
                raise

    def _digest(self, place: SectionRange, readers: ThreadPoolExecutor) -> str:
        running = hashlib.sha256()
        for piece in self._pieces(place, readers):
            if self._given_up.is_set():
                break
            # hashlib lets other threads run while it works on a large piece, and so does reading.
            running.update(piece)
            self._advance(len(piece))
        return running.hexdigest()

    def _pieces(self, place: SectionRange, readers: ThreadPoolExecutor) -> Iterator[memoryview]:
        size = min(PIECE_BYTES, place.length_bytes)
        buffers = [memoryview(bytearray(size)) for _ in range(2 if place.length_bytes > PIECE_BYTES else 1)]
        starts = range(place.offset_bytes, place.end_bytes, PIECE_BYTES)
        ahead: Future[memoryview] | None = None
        for index, start in enumerate(starts):
            piece = self._read(buffers[index % len(buffers)], start, place) if ahead is None else ahead.result()
            following = index + 1
            if following < len(starts):
                buffer = buffers[following % len(buffers)]
                ahead = readers.submit(self._read, buffer, starts[following], place)
            yield piece

    def _read(self, buffer: memoryview, start: int, place: SectionRange) -> memoryview:
        piece = buffer[: min(PIECE_BYTES, place.end_bytes - start)]
        self._container.read_into(piece, start)
        return piece

    def _advance(self, byte_count: int) -> None:
        with self._telling:
            self._done_bytes += byte_count
            if self._progress is not None:
                self._progress(self._done_bytes, self._total_bytes)


RULES: tuple[Rule, ...] = (section_digests_match,)
