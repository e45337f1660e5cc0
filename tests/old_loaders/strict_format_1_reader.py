"""Read a bundle as strictly as loaders did from September to November 2026. Frozen: never change what it accepts.

Standard library only, nothing of rowpack. Those loaders refuse a header with a sixth key and a section entry with a
third; they take sections they do not know, gaps between sections, and bytes behind the last one.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

MAGIC = b"BUNDLE\x01\x00"
HEADER_LIMIT = 100 * 1024 * 1024
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")


def read_bundle(path: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return (family, task, backend) and every section's bytes; ValueError for what those loaders refused."""
    data = path.read_bytes()
    if len(data) < 16 or data[:8] != MAGIC:
        raise ValueError("invalid bundle magic")
    (length,) = struct.unpack_from("<Q", data, 8)
    if length > HEADER_LIMIT or 16 + length > len(data):
        raise ValueError("invalid bundle header length")
    header: Any = json.loads(data[16 : 16 + length])
    if not isinstance(header, dict) or set(header) != {"format", "family", "task", "backend", "sections"}:
        raise ValueError("unexpected bundle header field set")
    if header["format"] != 1 or isinstance(header["format"], bool):
        raise ValueError("unsupported bundle format")
    facts = {key: header[key] for key in ("family", "task", "backend")}
    for value in facts.values():
        if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
            raise ValueError("invalid bundle identifier")
    sections = {}
    for name, entry in header["sections"].items():
        if not isinstance(entry, dict) or set(entry) != {"offset", "length"}:
            raise ValueError("unexpected bundle section field set")
        begin, size = entry["offset"], entry["length"]
        if not all(
            isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in (begin, size)
        ):
            raise ValueError("invalid bundle section range")
        if 16 + length + begin + size > len(data):
            raise ValueError("truncated bundle section")
        sections[name] = data[16 + length + begin : 16 + length + begin + size]
    return facts, sections
