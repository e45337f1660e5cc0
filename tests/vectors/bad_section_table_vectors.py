"""Vectors about the section table, section names, and the bytes that belong to no section."""

from __future__ import annotations

import struct
from copy import deepcopy
from typing import Any

import msgpack
from bad_container_vectors import header_replaced
from bad_vector import VectorList
from forged_bundles import (
    PAYLOAD_START,
    bent,
    container,
    forged,
    frame,
    good_bundle,
    header_of,
    patched,
    raw_frame,
    sections_end,
)
from synthetic_bundles import BundleParts

from rowpack_loaders.container import TRAILER_MAGIC

GOOD = good_bundle()
VECTORS = VectorList()
TABLE = header_of(GOOD)["sections"]


def add_numbers() -> None:
    """Add everything that is no offset or no length."""
    numbers = {
        "true": (b"true", "section_number_invalid"),
        "1.0": (b"1.0", "section_number_invalid"),
        "exponent": (b"1e3", "section_number_invalid"),
        "negative": (b"-1", "section_number_invalid"),
        "minus-zero": (b"-0", "json_integer_out_of_range"),
        "2-63": (b"9223372036854775808", "json_integer_out_of_range"),
        "2-64": (b"18446744073709551616", "json_integer_out_of_range"),
        "text": (b'"1"', "section_number_invalid"),
        "null": (b"null", "section_number_invalid"),
        "largest": (b"9223372036854775807", "section_beyond_file"),
    }
    entry = TABLE["engine.onnx"]
    old = b'"engine.onnx":{"offset":%d,"length":%d}' % (entry["offset"], entry["length"])
    for name, (number, code) in numbers.items():
        for key in ("offset", "length"):
            new = old.replace(b'"%s":%d' % (key.encode(), entry[key]), b'"%s":%s' % (key.encode(), number))
            VECTORS.refused(f"section-{key}-{name}", code, f"{key} {number.decode()}.", header_replaced(old, new))


def moved(name: str, **places: int) -> bytes:
    """Return the good bundle with another range for a section, in the header alone."""
    return forged(GOOD, header=lambda header: header["sections"][name].update(places))


def add_ranges() -> None:
    """Add ranges that overlap or leave the file."""
    engine, last = TABLE["engine.onnx"], TABLE["golden.msgpack.zst"]
    ranges = {
        "overlap": ({"offset": engine["offset"] + 100}, "section_overlap", "starts inside the one before it"),
        "same-range": (dict(engine), "section_overlap", "has the bytes of another"),
        "inside-another": ({"offset": engine["offset"] + 8, "length": 8}, "section_overlap", "lies inside another"),
        "one-past-the-end": (
            {"offset": last["offset"], "length": len(GOOD) - PAYLOAD_START - last["offset"] + 1},
            "section_beyond_file",
            "ends one byte after the file",
        ),
        "sum-overflows": (
            {"offset": 2**63 - 1, "length": 2**63 - 1},
            "section_beyond_file",
            "has an offset and a length whose sum overflows",
        ),
    }
    for name, (places, code, what) in ranges.items():
        VECTORS.refused(f"section-{name}", code, f"A section {what}.", moved("prefill.onnx", **places))
    entries = ",".join(f'"s{index:04}":{{"offset":0,"length":0}}' for index in range(3000)).encode()
    head = b'{"format":1,"family":"a","task":"text_generation","backend":"b","sections":{%s}}' % entries
    VECTORS.refused(
        "section-count-3000",
        "bundle_manifest_missing",
        "Three thousand empty sections and no manifest: read, and refused for want of a manifest.",
        container(head.ljust(-(len(head) + 16) % 4096 + len(head), b" ")),
        warnings=("trailer_missing",),
    )


def renamed(new: str) -> bytes:
    """Return the good bundle with another name for its tokenizer, in header and manifest."""

    def in_manifest(manifest: dict[str, Any]) -> None:
        manifest["sections"][new] = manifest["sections"].pop("tokenizer.json")
        manifest["tokenizer"]["sections"] = [new]

    def in_header(header: dict[str, Any]) -> None:
        names = header["sections"].items()
        header["sections"] = {new if name == "tokenizer.json" else name: entry for name, entry in names}

    return forged(GOOD, manifest=in_manifest, header=in_header)


def add_names() -> None:
    """Add names that could lead a program out of its folder, and names that do not open everywhere."""
    unsafe = {
        "parent": "../tokenizer.json",
        "parent-inside": "a/../../tokenizer.json",
        "current": "./tokenizer.json",
        "absolute": "/etc/passwd",
        "empty-part": "a//b",
        "backslash": "..\\tokenizer.json",
        "drive": "c:tokenizer.json",
        "empty": "",
        "nul": "tokenizer.json\0",
        "line-feed": "a\nb",
        "escape-sequence": "\x1b[2J",
        "right-to-left": "a\u202enosj.exe",
        "129-characters": "a" * 129,
        "10000-characters": "a" * 10_000,
    }
    head = b'{"format":1,"family":"a","task":"text_generation","backend":"b","sections":{%s:{"offset":0,"length":0}}}'
    for name, section in unsafe.items():
        what = f"A section called {section[:24]!r}."
        data = container(head % b'"%s"' % section.encode()) if len(section) > 1000 else renamed(section)
        VECTORS.refused(f"name-{name}", "section_name_unsafe", what, data)
    unportable: dict[str, tuple[str, tuple[str, ...]]] = {
        "device": ("con", ()),
        "device-with-suffix": ("lpt1.txt", ()),
        "device-in-a-folder": ("r/com1", ()),
        "dot-at-the-end": ("tokenizer.", ()),
        "four-levels": ("t/o/k/e", ()),
        "upper-case": ("Tokenizer.json", ("schema_value_invalid",)),
        "space": ("to kenizer.json", ("schema_value_invalid",)),
        "not-ascii": ("tökenizer.json", ("schema_value_invalid",)),
    }
    for name, (section, others) in unportable.items():
        errors = ("section_name_not_portable", *others)
        VECTORS.invalid(f"name-{name}", errors, f"A section called {section!r}.", renamed(section))

    def add_twin(header: dict[str, Any]) -> None:
        header["sections"]["TOKENIZER.json"] = {"offset": 0, "length": 0}

    twins = forged(GOOD, header=add_twin)
    VECTORS.refused("name-case-twins", "section_names_differ_by_case", "Two names that differ only in case.", twins)


def add_places() -> None:
    """Add bytes that belong to nothing, and sections that a writer puts elsewhere."""
    end = sections_end(GOOD)
    gap = PAYLOAD_START + TABLE["runtime.json"]["offset"] + TABLE["runtime.json"]["length"]
    VECTORS.invalid("gap-not-zero", ("gap_not_zero",), "A byte between two sections.", patched(GOOD, gap, b"\1"))
    VECTORS.invalid(
        "gap-not-zero-before-a-section",
        ("gap_not_zero",),
        "A byte right before a section.",
        patched(GOOD, PAYLOAD_START + TABLE["runtime.json"]["offset"] - 1, b"\xff"),
    )

    def turn_round(header: dict[str, Any]) -> None:
        header["sections"] = dict(reversed(header["sections"].items()))

    def shift(header: dict[str, Any]) -> None:
        header["sections"]["golden.msgpack.zst"]["offset"] += 8

    VECTORS.invalid(
        "sections-out-of-order",
        ("sections_out_of_order",),
        "The header lists the sections the wrong way round.",
        forged(GOOD, header=turn_round),
    )
    place = TABLE["golden.msgpack.zst"]["offset"]
    VECTORS.invalid(
        "section-not-aligned",
        ("section_not_aligned",),
        "A section starts 8 bytes after a multiple of 4096.",
        forged(GOOD, header=shift, payload=lambda payload: payload[:place] + bytes(8) + payload[place:]),
    )
    VECTORS.invalid(
        "one-byte-appended",
        ("trailing_bytes_undeclared",),
        "One zero byte behind the trailer, which then is none.",
        GOOD + b"\0",
        warnings=("trailer_missing",),
    )
    VECTORS.invalid("two-trailers", ("trailing_bytes_undeclared",), "The trailer twice.", GOOD + GOOD[end:])
    VECTORS.invalid(
        "bytes-before-the-trailer",
        ("trailing_bytes_undeclared",),
        "Sixteen zero bytes between the last section and the trailer.",
        GOOD[:end] + bytes(16) + GOOD[end:],
    )


def add_trailers() -> None:
    """Add trailers that lie about their length, their text or the file."""
    end = sections_end(GOOD)
    stored = GOOD[end:-16]
    lengths = {"zero": 0, "one-too-long": len(stored) + 1, "whole-file": len(GOOD), "2-63": 2**63, "2-64": 2**64 - 1}
    for name, length in lengths.items():
        data = GOOD[:end] + frame(stored, length)
        VECTORS.refused(f"trailer-length-{name}", "trailer_length_invalid", f"It says {length} bytes.", data)
    VECTORS.refused(
        "trailer-length-one-short",
        "json_malformed",
        "It says one byte less than it has.",
        GOOD[:end] + frame(stored, len(stored) - 1),
        errors=("json_malformed", "trailing_bytes_undeclared"),
    )
    texts = {
        "byte-order-mark": (b"\xef\xbb\xbf" + stored, "json_byte_order_mark"),
        "not-utf8": (stored.replace(b"provenance", b"provenanc\xff", 1), "json_not_utf8"),
        "duplicate-key": (
            stored.replace(b'"trailer_version":1', b'"trailer_version":1,"trailer_version":1'),
            "json_duplicate_key",
        ),
        "nan": (stored.replace(b'"trailer_version":1', b'"trailer_version":NaN'), "json_not_finite"),
        "deep-nesting": (b"[" * 1000 + b"]" * 1000, "json_too_deep"),
        "array": (b"[]", "json_not_an_object"),
    }
    for name, (text, code) in texts.items():
        VECTORS.refused(f"trailer-{name}", code, "The trailer's text is not strict JSON.", GOOD[:end] + frame(text))
    for key in ("header_sha256", "manifest_sha256"):
        data = forged(GOOD, trailer=lambda trailer, key=key: trailer.update({key: "0" * 64}))
        VECTORS.refused(f"trailer-other-{key.replace('_', '-')}", "trailer_digest_mismatch", f"Another {key}.", data)
    for key, value in (
        ("content_digest", "sha256:" + "0" * 64),
        ("file_digest", "sha256:" + "0" * 64),
        ("provenance_sha256", "0" * 64),
    ):
        data = forged(GOOD, trailer=lambda trailer, key=key, value=value: trailer.update({key: value}))
        VECTORS.invalid(f"trailer-other-{key.replace('_', '-')}", ("trailer_digest_mismatch",), f"Another {key}.", data)
    changes: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "version-2": ({"trailer_version": 2}, ("trailer_version_unsupported",)),
        "key-unknown": ({"note": 1}, ("schema_key_unknown",)),
        "provenance-text": ({"provenance": "x"}, ("schema_value_invalid", "trailer_digest_mismatch")),
    }
    for name, (change, codes) in changes.items():
        data = forged(GOOD, trailer=lambda trailer, change=change: trailer.update(change))
        VECTORS.invalid(f"trailer-{name}", codes, f"The trailer says {change}.", data)
    VECTORS.invalid(
        "trailer-not-canonical",
        ("trailer_not_canonical",),
        "The trailer's text has a space that canonical JSON does not have.",
        forged(GOOD, trailer_text=lambda text: text.replace(b":", b": ", 1)),
    )
    marked = bent(end_like_a_trailer)
    assert marked[: sections_end(marked)].endswith(TRAILER_MAGIC)
    VECTORS.invalid(
        "trailer-magic-inside-a-payload",
        (),
        "The last section ends in the trailer's magic; as no byte follows it, there is no trailer.",
        marked[: sections_end(marked)],
        warnings=("trailer_missing",),
    )


def end_like_a_trailer(parts: BundleParts) -> None:
    """Let the golden vectors end in a number whose eight bytes are the trailer's magic."""
    vectors = deepcopy(parts.golden)
    vectors["cases"][-1]["smallest_top2_gap"] = struct.unpack(">d", TRAILER_MAGIC)[0]
    parts.golden = vectors
    parts.sections["golden.msgpack.zst"] = raw_frame(msgpack.packb(vectors))


add_numbers()
add_ranges()
add_names()
add_places()
add_trailers()
