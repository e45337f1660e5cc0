"""Vectors that are no file of their own: folders, pipes, links, and a file that changes while it is read."""

from __future__ import annotations

from bad_vector import BadVector, VectorList
from forged_bundles import PAYLOAD_START

VECTORS = VectorList()

VECTORS.kind("directory", "container_not_a_regular_file", "A folder.")
VECTORS.kind("fifo", "container_not_a_regular_file", "A FIFO that nobody writes to: opening it would wait for ever.")
VECTORS.kind("socket", "container_not_a_regular_file", "A socket.")
VECTORS.kind("device", "container_not_a_regular_file", "The null device.")
VECTORS.kind("missing", "container_not_found", "No file.")
VECTORS.kind("dangling_link", "container_not_found", "A symbolic link to nothing.")
VECTORS.kind("link_loop", "container_not_readable", "A symbolic link to itself.")
VECTORS.kind("symbolic_link", None, "A symbolic link to the base: model caches are made of them.")
VECTORS.kind("hard_link", None, "A hard link to the base: nothing is ever written, so there is nothing to protect.")
VECTORS.kind("changed_while_read", "container_changed_while_reading", "A byte is appended after the first read.")
VECTORS.kind("cut_while_read", "container_changed_while_reading", "Half the file is cut off after the first read.")

_HEADER = (
    '{"format":1,"family":"a","task":"text_generation","backend":"b",'
    '"sections":{"manifest.json":{"offset":0,"length":1073741824}}}'
)
VECTORS.vectors.append(
    BadVector(
        "manifest-of-one-gibibyte",
        "A sparse file that says its manifest has 1 GiB, and has it: refused unread.",
        "section_too_large",
        "section_too_large",
        ("section_too_large", "manifest_beyond_first_mebibyte"),
        ("trailer_missing",),
        pieces=(
            {"text": "BUNDLE"},
            {"hex": "01 00 f0 0f 00 00 00 00 00 00"},
            {"text": _HEADER},
            {"repeat": "20", "count": PAYLOAD_START - 16 - len(_HEADER)},
            {"repeat": "00", "count": 2**30},
        ),
    )
)
