"""Make ``schema/vectors/extents.json``: sections stored as extents, what they stand for, and broken ones.

``python tests/extents/extent_vectors.py`` writes it anew.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[2] / "schema" / "vectors" / "extents.json"

MAGIC = bytes.fromhex("45 58 54 45 4E 54 01 00")
BASE = bytes(range(32))
LITERAL, COPY = 0, 1


def stored(
    extents: list[tuple[int, int, int]],
    literals: bytes = b"",
    *,
    length: int | None = None,
    count: int | None = None,
    magic: bytes = MAGIC,
) -> bytes:
    """Return a section made by hand; length and count are the true ones unless given."""
    total = sum(part for _, part, _ in extents) if length is None else length
    header = magic + struct.pack("<QQ", total, len(extents) if count is None else count)
    return header + b"".join(struct.pack("<QQQ", *extent) for extent in extents) + literals


GOOD: dict[str, tuple[bytes, bytes]] = {
    "empty content": (stored([]), b""),
    "literals alone": (stored([(LITERAL, 3, 0)], b"abc"), b"abc"),
    "one copy": (stored([(COPY, 4, 8)]), BASE[8:12]),
    "the whole base": (stored([(COPY, 32, 0)]), BASE),
    "in turn": (
        stored([(LITERAL, 2, 0), (COPY, 5, 27), (LITERAL, 1, 2), (COPY, 3, 0)], b"abc"),
        b"ab" + BASE[27:32] + b"c" + BASE[0:3],
    ),
    "the base twice over": (stored([(COPY, 32, 0), (COPY, 32, 0)]), BASE + BASE),
    "neighbours of one kind": (stored([(LITERAL, 1, 0), (LITERAL, 2, 1)], b"abc"), b"abc"),
}

BAD: dict[str, bytes] = {
    "no bytes": b"",
    "shorter than its header": MAGIC + bytes(15),
    "another magic": stored([(COPY, 4, 8)], magic=b"EXTENT\2\0"),
    "more extents than bytes": stored([(COPY, 4, 8)], count=2),
    "an extent count of 2^64 - 1": stored([(COPY, 4, 8)], count=2**64 - 1),
    "fewer extents than bytes": stored([(COPY, 4, 8), (COPY, 4, 0)], count=1, length=4),
    "an unknown kind": stored([(2, 4, 8)]),
    "an empty extent": stored([(COPY, 0, 8), (COPY, 4, 0)]),
    "a copy beyond the base": stored([(COPY, 5, 28)]),
    "a copy from beyond the base": stored([(COPY, 1, 33)]),
    "a copy that wraps around": stored([(COPY, 8, 2**64 - 4)], length=8),
    "a length that wraps around": stored([(COPY, 2**64 - 1, 4)], length=3),
    "the base three times over": stored([(COPY, 32, 0)] * 3),
    "literals out of order": stored([(LITERAL, 1, 1), (LITERAL, 1, 0)], b"ab"),
    "literals used twice": stored([(LITERAL, 1, 0), (LITERAL, 1, 0)], b"a"),
    "more literals than bytes": stored([(LITERAL, 4, 0)], b"abc"),
    "literals left over": stored([(LITERAL, 3, 0)], b"abcd"),
    "another length": stored([(COPY, 4, 8)], length=5),
}


def vectors() -> dict[str, Any]:
    """Return the content of the vector file; bytes are hexadecimal."""
    return {
        "base": BASE.hex(),
        "good": [
            {"name": name, "stored": made.hex(), "content": content.hex()} for name, (made, content) in GOOD.items()
        ],
        "bad": [{"name": name, "stored": made.hex(), "code": "extents_malformed"} for name, made in BAD.items()],
    }


def text() -> str:
    """Return the text of the vector file."""
    return json.dumps(vectors(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    sys.exit()
