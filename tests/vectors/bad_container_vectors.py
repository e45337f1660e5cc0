"""Vectors about the file, its magic, its length and the text of its header."""

from __future__ import annotations

import struct

from bad_vector import VectorList
from forged_bundles import PAYLOAD_START, container, forged, good_bundle, header_of, patched, place_of, sections_end

GOOD = good_bundle()
VECTORS = VectorList()


def with_length(length: int) -> bytes:
    """Return the good bundle with another header length."""
    return patched(GOOD, 8, struct.pack("<Q", length))


def add_files() -> None:
    """Add files that are no bundle at all."""
    files = {
        "empty-file": (b"", "container_too_short", "A file without a byte."),
        "magic-of-a-zip": (patched(GOOD, 0, b"PK\x03\x04"), "container_magic_unknown", "The magic of a zip archive."),
        "magic-of-gguf": (patched(GOOD, 0, b"GGUF\3\0\0\0"), "container_magic_unknown", "The magic of GGUF."),
        "magic-version-2": (patched(GOOD, 6, b"\2"), "container_magic_unknown", "A container version 2."),
        "pointer-file": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 18142976\n",
            "container_magic_unknown",
            "The pointer that a large-file store leaves instead of the file.",
        ),
    }
    for name, (data, code, what) in files.items():
        VECTORS.refused(name, code, what, data)


def add_cuts() -> None:
    """Add the good bundle cut at every structural boundary, and inside every part."""
    cuts = {
        "inside-the-magic": (4, "container_too_short"),
        "behind-the-magic": (8, "container_too_short"),
        "inside-the-header-length": (12, "container_too_short"),
        "before-the-header": (16, "header_beyond_file"),
        "inside-the-header": (200, "header_beyond_file"),
        "before-the-end-of-the-header": (PAYLOAD_START - 1, "header_beyond_file"),
        "behind-the-header": (PAYLOAD_START, "section_beyond_file"),
    }
    for section in header_of(GOOD)["sections"]:
        start, end = place_of(GOOD, section)
        word = section.replace(".", "-")
        cuts[f"before-{word}"] = (start, "section_beyond_file")
        cuts[f"inside-{word}"] = ((start + end) // 2, "section_beyond_file")
    for name, (length, code) in cuts.items():
        VECTORS.refused(f"truncated-{name}", code, f"Cut after {length} bytes.", GOOD[:length])

    last = sections_end(GOOD)
    VECTORS.invalid(
        "truncated-before-the-trailer",
        (),
        "Cut where the last section ends: whole but for the trailer, without which nothing vouches for the header.",
        GOOD[:last],
        warnings=("trailer_missing",),
    )
    for name, length in (
        ("inside", last + 100),
        ("before-the-frame-of", len(GOOD) - 16),
        ("at-the-end-of", len(GOOD) - 1),
    ):
        VECTORS.invalid(
            f"truncated-{name}-the-trailer",
            ("trailing_bytes_undeclared",),
            f"Cut after {length} bytes, so that what is left of the trailer is none.",
            GOOD[:length],
            warnings=("trailer_missing",),
        )


def add_header_lengths() -> None:
    """Add lengths of the header that are not its length."""
    lengths = {
        "zero": (0, "header_empty", "H is 0."),
        "one-past-the-end": (len(GOOD) - 15, "header_beyond_file", "H is one more than the file has."),
        "above-the-limit": (100 * 2**20 + 1, "header_too_long", "H is 100 MiB and 1."),
        "2-63": (2**63, "header_too_long", "H is 2^63, negative to those who read it signed."),
        "2-64": (2**64 - 1, "header_too_long", "H is 2^64 - 1: 16 + H overflows."),
        "inside-the-text": (100, "json_malformed", "H ends inside the header's text."),
    }
    for name, (length, code, what) in lengths.items():
        VECTORS.refused(f"header-length-{name}", code, what, with_length(length))


def add_header_texts() -> None:
    """Add headers that are not one strict JSON object."""
    texts = {
        "byte-order-mark": (b"\xef\xbb\xbf{}", "json_byte_order_mark", "A byte order mark before the header."),
        "not-utf8": (b'{"family":"\xff"}', "json_not_utf8", "A byte of the header is not UTF-8."),
        "utf16": ("{}".encode("utf-16-le"), "json_malformed", "The header in UTF-16."),
        "not-json": (b"format=1", "json_malformed", "The header is not JSON."),
        "array": (b"[1]", "json_not_an_object", "The header is an array."),
        "two-values": (b"{}{}", "json_malformed", "Two objects in the header."),
        "nan": (b'{"format":NaN}', "json_not_finite", "NaN in the header."),
        "overflow": (b'{"format":1e999}', "json_not_finite", "A number that overflows to infinity."),
        "lone-surrogate": (b'{"format":"\\ud800"}', "json_lone_surrogate", "Half a surrogate pair."),
        "deep-nesting": (b"[" * 100_000 + b"]" * 100_000, "json_too_deep", "100,000 arrays inside each other."),
        "million-values": (b"[" + b"0," * 1_000_000 + b"0]", "json_too_many_values", "A million and one values."),
        "long-number": (
            b'{"format":' + b"9" * 100_000 + b"}",
            "json_integer_out_of_range",
            "A number of 100,000 digits, which takes quadratic time to convert.",
        ),
        "without-keys": (b"{}", "header_key_missing", "An empty object."),
        "sections-array": (
            b'{"format":1,"family":"a","task":"text_generation","backend":"b","sections":[]}',
            "header_sections_invalid",
            "The section table is an array.",
        ),
    }
    for name, (text, code, what) in texts.items():
        VECTORS.refused(f"header-{name}", code, what, container(text))
    VECTORS.invalid(
        "header-padded-with-line-feeds",
        ("header_padding_invalid",),
        "The header ends in line feeds: readers skip them, writers may not write them.",
        forged(GOOD, header_text=lambda text: text + b"\n\n"),
    )


def add_header_keys() -> None:
    """Add headers with keys that format 1 does not have, or values it does not allow."""
    texts = {
        "duplicate-key": (b'"format":1', b'"format":1,"format":1', "json_duplicate_key"),
        "duplicate-key-by-escape": (b'"format":1', b'"format":1,"\\u0066ormat":1', "json_duplicate_key"),
        "duplicate-section": (b'"runtime.json":', b'"runtime.json":{},"runtime.json":', "json_duplicate_key"),
        "duplicate-offset": (b'{"offset":0,', b'{"offset":0,"offset":4096,', "json_duplicate_key"),
        "sixth-key": (b'"format":1', b'"format":1,"note":1', "header_key_unknown"),
        "key-missing": (b'"task":"text_generation",', b"", "header_key_missing"),
        "format-2": (b'"format":1', b'"format":2', "header_format_unsupported"),
        "format-true": (b'"format":1', b'"format":true', "header_format_unsupported"),
        "format-1.0": (b'"format":1', b'"format":1.0', "header_format_unsupported"),
        "format-text": (b'"format":1', b'"format":"1"', "header_format_unsupported"),
        "other-task": (b"text_generation", b"image_generation", "header_task_unsupported"),
        "family-in-upper-case": (b'"qwen3_5"', b'"Qwen3_5"', "header_identifier_invalid"),
        "backend-empty": (b'"ort"', b'""', "header_identifier_invalid"),
        "backend-null": (b'"ort"', b"null", "header_identifier_invalid"),
        "section-third-key": (b'{"offset":0,', b'{"sha256":"","offset":0,', "header_key_unknown"),
        "section-without-offset": (b'{"offset":0,', b"{", "header_key_missing"),
        "section-entry-array": (b'"runtime.json":', b'"x":[0,1],"runtime.json":', "section_entry_invalid"),
    }
    for name, (old, new, code) in texts.items():
        what = f"In the header, {old.decode()} became {new.decode()}."
        VECTORS.refused(f"header-{name}", code, what, header_replaced(old, new))


def header_replaced(old: bytes, new: bytes) -> bytes:
    """Return the good bundle with a text in its header replaced once."""

    def change(text: bytes) -> bytes:
        assert old in text
        return text.replace(old, new, 1)

    return forged(GOOD, header_text=change)


add_files()
add_cuts()
add_header_lengths()
add_header_texts()
add_header_keys()
