"""Compute every digest of a bundle from its bytes, in one pass, and hold them against the recorded ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rowpack_loaders.bundle import Bundle, open_bundle
from rowpack_loaders.digests import content_digest, file_digest
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields

PIECE_BYTES = 4 * 2**20

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True)
class BundleDigests:
    """The digests of one file: ``sha256`` as ``sha256sum`` prints it, and those of the format."""

    path: Path
    file_bytes: int
    sha256: str
    content_digest: str
    file_digest: str
    manifest_sha256: str
    section_sha256: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack digest --json`` prints."""
        return {
            "path": str(self.path),
            "file_bytes": self.file_bytes,
            "sha256": self.sha256,
            "content_digest": self.content_digest,
            "file_digest": self.file_digest,
            "manifest_sha256": self.manifest_sha256,
            "sections": dict(self.section_sha256),
        }


def digest_bundle(path: str | os.PathLike[str], *, progress: Progress | None = None) -> BundleDigests:
    """Read the bundle at ``path`` once and return its digests.

    Raises what :func:`open_bundle` raises, and ``bundle_digests_mismatch`` with every recorded digest (manifest and
    trailer) that is not the computed one: the digests of a damaged file are of no use to anybody.
    """
    with open_bundle(path) as bundle:
        bundle.require_manifest()
        container = bundle.container
        whole, sections = hashlib.sha256(), {name: hashlib.sha256() for name in container.sections}
        header = hashlib.sha256()
        places = [(name, place.offset_bytes, place.end_bytes) for name, place in container.sections.items()]
        buffers = [memoryview(bytearray(PIECE_BYTES)) for _ in range(2)]
        # The digest of the whole is the long thread: the sections' run beside it, on the same pieces.
        with ThreadPoolExecutor(1, "whole-sha256") as pool:
            pending = pool.submit(lambda: None)
            for index, offset in enumerate(range(0, container.file_size, PIECE_BYTES)):
                piece = buffers[index % 2][: min(PIECE_BYTES, container.file_size - offset)]
                container.read_into(piece, offset)
                pending.result()
                pending = pool.submit(whole.update, piece)
                header.update(_overlap(piece, offset, 0, container.payload_start))
                for name, start, end in places:
                    sections[name].update(_overlap(piece, offset, start, end))
                if progress is not None:
                    progress(offset + len(piece), container.file_size)
            pending.result()
        container.check_unchanged()
        digests = {name: digest.hexdigest() for name, digest in sections.items()}
        found = BundleDigests(
            path=bundle.path,
            file_bytes=container.file_size,
            sha256=whole.hexdigest(),
            content_digest=content_digest(bundle.manifest),
            file_digest=file_digest(header.hexdigest(), container.sections, digests, container.payload_start),
            manifest_sha256=digests[MANIFEST_SECTION],
            section_sha256=digests,
        )
        problems = list(_deviations(bundle, found))
    if problems:
        raise RowpackError.from_problems(
            "bundle_digests_mismatch", "The bundle is not the one its digests were written for", problems
        )
    return found


def _overlap(piece: memoryview, offset: int, start: int, end: int) -> memoryview:
    """Return the part of ``piece``, which begins at ``offset`` of the file, that lies in ``start … end``."""
    return piece[min(max(start - offset, 0), len(piece)) : max(min(end - offset, len(piece)), 0)]


def _deviations(bundle: Bundle, found: BundleDigests) -> Iterator[Problem]:
    recorded = [("content_digest", bundle.manifest.get("content_digest"), found.content_digest, MANIFEST_SECTION)]
    trailer = bundle.trailer()
    if trailer is not None:
        recorded += [
            (key, trailer.get(key), getattr(found, key), "trailer") for key in ("content_digest", "file_digest")
        ]
    for key, value, computed, place in recorded:
        if value != computed:
            yield _deviation(f"{bundle.path}: {place}#/{key}", value, computed)
    for name, entry in Fields(bundle.manifest, "", MANIFEST_SECTION).members("sections"):
        computed = found.section_sha256.get(name, "no such section")
        if entry.text("sha256") != computed:
            yield _deviation(f"{bundle.path}: {name}", entry.text("sha256"), computed)


def _deviation(where: str, recorded: object, computed: str) -> Problem:
    return Problem(
        "bundle_digests_mismatch",
        "A recorded digest is not that of the file",
        where=where,
        found=computed,
        expected=str(recorded)[:80],
        remedy="The file was damaged or changed: build or copy it again",
    )
