"""Bend one thing of a good bundle and make everything else agree with it again, digests and trailer included."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
from synthetic_bundles import BundleParts, single_parts
from tiny_engines import golden_case

from rowpack_loaders.container import TRAILER_MAGIC
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.digests import canonical_json, content_digest, file_digest

HEADER_BYTES = 4080
PAYLOAD_START = 4096
MANIFEST = "manifest.json"

Change = Callable[[dict[str, Any]], object]
TextChange = Callable[[bytes], bytes]


def raw_frame(content: bytes) -> bytes:
    """Return a zstandard frame that stores ``content`` unpacked: the same bytes by every version of the library."""
    blocks = [content[start : start + 2**17] for start in range(0, len(content), 2**17)] or [b""]
    headers = [
        (len(block) << 3 | (index == len(blocks) - 1)).to_bytes(3, "little") for index, block in enumerate(blocks)
    ]
    # Single segment, content size in eight bytes (RFC 8878, section 3.1.1.1).
    return (
        bytes.fromhex("28b52ffd e0") + struct.pack("<Q", len(content)) + b"".join(map(bytes.__add__, headers, blocks))
    )


def good_parts(layout: str = "split") -> BundleParts:
    """Return the parts of a good bundle whose bytes depend on nothing but this source."""
    parts = BundleParts() if layout == "split" else single_parts()
    parts.golden["cases"].append(golden_case([5] * 20, 4))
    parts.manifest["self_test"]["cases"] = len(parts.golden["cases"])
    parts.sections["golden.msgpack.zst"] = raw_frame(msgpack.packb(parts.golden))
    parts.provenance = {}
    return parts


def written(parts: BundleParts) -> bytes:
    """Return the bytes that the real writer makes of ``parts``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bundle"
        parts.write(path)
        return path.read_bytes()


@cache
def good_bundle(layout: str = "split") -> bytes:
    """Return the bundle that all broken ones are made from."""
    return written(good_parts(layout))


def bent(change: Callable[[BundleParts], object], layout: str = "split") -> bytes:
    """Return a bundle whose parts are bent before it is written, so that everything else agrees."""
    parts = good_parts(layout)
    change(parts)
    return written(parts)


def header_of(data: bytes) -> dict[str, Any]:
    """Return the header of a good bundle."""
    header: dict[str, Any] = json.loads(data[16:PAYLOAD_START])
    return header


def place_of(data: bytes, name: str) -> tuple[int, int]:
    """Return the absolute start and end of a section of a good bundle."""
    entry = header_of(data)["sections"][name]
    start = PAYLOAD_START + entry["offset"]
    return start, start + entry["length"]


def sections_end(data: bytes) -> int:
    """Return where the last section of a good bundle ends."""
    return max(place_of(data, name)[1] for name in header_of(data)["sections"])


def forged(
    data: bytes,
    *,
    manifest: Change | None = None,
    manifest_text: TextChange | None = None,
    header: Change | None = None,
    header_text: TextChange | None = None,
    trailer: Change | None = None,
    trailer_text: TextChange | None = None,
    payload: TextChange | None = None,
    digest: bool = True,
) -> bytes:
    """Return ``data`` with changes to manifest, header, trailer or payload, each as a value or as text.

    The manifest's content digest (unless ``digest`` is false), its length in the header and the digests of the
    trailer follow; ``trailer`` and ``trailer_text`` change the result once more.
    """
    table = header_of(data)
    start, end = place_of(data, MANIFEST)
    value = json.loads(data[start:end])
    if manifest is not None:
        manifest(value)
        if digest:
            value["content_digest"] = content_digest(value)
    text = canonical_json(value)
    if manifest_text is not None:
        text = manifest_text(text)
    places = sorted(entry["offset"] for entry in table["sections"].values())
    room = next(offset for offset in [*places, len(data)] if offset > 0)
    assert len(text) <= room
    stored = text.ljust(room, b"\0") + data[PAYLOAD_START + room : sections_end(data)]
    if payload is not None:
        stored = payload(stored)
    table["sections"][MANIFEST]["length"] = len(text)
    if header is not None:
        header(table)
    head = json.dumps(table, separators=(",", ":")).encode()
    if header_text is not None:
        head = header_text(head)
    assert len(head) <= HEADER_BYTES
    preamble = data[:8] + struct.pack("<Q", HEADER_BYTES) + head.ljust(HEADER_BYTES, b" ")
    return preamble + stored + _trailer(preamble, table, stored, value, trailer, trailer_text)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Return ``data`` with bytes replaced in place; nothing else follows."""
    return data[:at] + new + data[at + len(new) :]


def container(header: bytes, payload: bytes = b"") -> bytes:
    """Return magic, length and whatever stands for a header and a payload."""
    return b"BUNDLE\1\0" + struct.pack("<Q", len(header)) + header + payload


def frame(text: bytes, length: int | None = None) -> bytes:
    """Return a trailer, which may lie about its length."""
    return text + struct.pack("<Q", len(text) if length is None else length) + TRAILER_MAGIC


def _trailer(
    preamble: bytes,
    table: dict[str, Any],
    payload: bytes,
    manifest: dict[str, Any],
    change: Change | None,
    change_text: TextChange | None,
) -> bytes:
    header_sha256 = hashlib.sha256(preamble).hexdigest()
    places, digests = {}, {MANIFEST: "0" * 64}
    for name, entry in table["sections"].items():
        # What no reader takes for a range needs no digest: the file is refused before its trailer is looked at.
        if isinstance(entry, dict) and all(type(number) is int and number >= 0 for number in entry.values()):
            stored = payload[entry["offset"] : entry["offset"] + entry["length"]]
            places[name] = SectionRange(PAYLOAD_START + entry["offset"], entry["length"])
            digests[name] = hashlib.sha256(stored).hexdigest()
    value: dict[str, Any] = {
        "trailer_version": 1,
        "header_sha256": header_sha256,
        "manifest_sha256": digests[MANIFEST],
        "content_digest": manifest.get("content_digest"),
        "file_digest": file_digest(header_sha256, places, digests, PAYLOAD_START),
        "provenance": {},
        "provenance_sha256": hashlib.sha256(b"{}").hexdigest(),
    }
    if change is not None:
        change(value)
    stored = canonical_json(value)
    return frame(stored if change_text is None else change_text(stored))
