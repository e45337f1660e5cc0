"""The rule about digests: every section is read once, several at a time, through one buffer each."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from rowpack_loaders.errors import Problem
from rowpack_loaders.validation.subject import Finding, Rule, Subject

PIECE_BYTES = 4 * 2**20
MOST_THREADS = 8


def section_digests_match(subject: Subject) -> Iterator[Finding]:
    """The stored bytes of every section have the SHA-256 that the manifest gives.

    The manifest's own is in the trailer.
    """
    digests = _digest_sections(subject)
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


def _digest_sections(subject: Subject) -> dict[str, str]:
    places = subject.container.sections
    total_bytes = sum(place.length_bytes for place in places.values())
    done_bytes = 0
    telling = threading.Lock()

    def advance(byte_count: int) -> None:
        nonlocal done_bytes
        with telling:
            done_bytes += byte_count
            if subject.progress is not None:
                subject.progress(done_bytes, total_bytes)

    def digest(name: str) -> str:
        # hashlib lets other threads run while it works on a large piece, and so does reading.
        place = places[name]
        running = hashlib.sha256()
        buffer = memoryview(bytearray(min(PIECE_BYTES, place.length_bytes)))
        for offset in range(place.offset_bytes, place.end_bytes, PIECE_BYTES):
            piece = buffer[: min(PIECE_BYTES, place.end_bytes - offset)]
            subject.container.read_into(piece, offset)
            running.update(piece)
            advance(len(piece))
        return running.hexdigest()

    # The largest first: it decides when the last thread is done.
    names = sorted(places, key=lambda name: -places[name].length_bytes)
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "validate-sha256") as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


RULES: tuple[Rule, ...] = (section_digests_match,)
