"""Build the trailer: digests and provenance behind the last section, where old loaders do not look.

JSON object (P bytes), P as u64 little-endian, magic 50 52 4F 56 01 00 00 00
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

from rowpack_loaders.container import TRAILER_LIMIT_BYTES, TRAILER_MAGIC
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.errors import RowpackError

TRAILER_VERSION = 1


def build_trailer(
    *,
    header_sha256: str,
    manifest_sha256: str,
    content_digest: str,
    file_digest: str,
    provenance: Mapping[str, object],
) -> bytes:
    """Return the trailer's bytes, frame included; the same arguments give the same bytes.

    Raises ``provenance_too_large`` when the trailer would be longer than readers take.
    """
    text = canonical_json(
        {
            "trailer_version": TRAILER_VERSION,
            "header_sha256": header_sha256,
            "manifest_sha256": manifest_sha256,
            "content_digest": content_digest,
            "file_digest": file_digest,
            "provenance": provenance,
            "provenance_sha256": hashlib.sha256(canonical_json(provenance)).hexdigest(),
        }
    )
    if len(text) > TRAILER_LIMIT_BYTES:
        raise RowpackError(
            "provenance_too_large",
            "The provenance is longer than readers take",
            found=f"{len(text)} bytes",
            expected=f"at most {TRAILER_LIMIT_BYTES} bytes",
            remedy="Build from a checkpoint of fewer files, such as one whose weights are in fewer shards",
        )
    return text + struct.pack("<Q", len(text)) + TRAILER_MAGIC
