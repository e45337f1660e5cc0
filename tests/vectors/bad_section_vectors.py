"""Vectors about the content of sections: golden vectors and weights."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
from bad_vector import VectorList
from forged_bundles import bent, good_parts, raw_frame
from synthetic_bundles import BundleParts
from tiny_engines import weights_section

from rowpack_loaders.safetensors_header import LENGTH_BYTES

VECTORS = VectorList()
GOLDEN = good_parts().sections["golden.msgpack.zst"]


def run_length_frame(byte: bytes, count: int, *, window_log: int = 17) -> bytes:
    """Return a zstandard frame of ``count`` times one byte: four bytes for every 128 KiB."""
    window = bytes([window_log - 10 << 3])
    blocks, rest = divmod(count, 2**17)
    sizes = [2**17] * blocks + ([rest] if rest else [])
    body = b"".join(
        (size << 3 | 1 << 1 | (index == len(sizes) - 1)).to_bytes(3, "little") + byte
        for index, size in enumerate(sizes)
    )
    return bytes.fromhex("28b52ffd 00") + window + body


def with_golden(stored: bytes) -> bytes:
    """Return the good bundle with other bytes as its golden vectors."""
    return bent(lambda parts: parts.sections.update({"golden.msgpack.zst": stored}))


def golden_changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the good bundle with its golden vectors changed as a value."""
    vectors = good_parts().golden
    change(vectors)
    return with_golden(raw_frame(msgpack.packb(vectors)))


def add_golden() -> None:
    """Add golden vectors that unpack to too much, to nothing, or to something else."""
    skippable = bytes.fromhex("502a4d18 01000000 78")
    nested = b"".join(b"\xdd" + struct.pack(">I", 400_000) for _ in range(12)) + bytes(1000)
    stored: dict[str, tuple[bytes, str, str]] = {
        "zstd-bomb": (run_length_frame(b"\0", 2**26), "golden_too_large", "2 KB that unpack to 64 MiB."),
        "zstd-window": (
            run_length_frame(b"\0", 100, window_log=31),
            "golden_invalid",
            "A frame that asks for a window of 2 GiB.",
        ),
        "zstd-cut": (GOLDEN[:-1], "golden_invalid", "The frame lacks its last byte."),
        "zstd-tail": (GOLDEN + b"\0", "golden_invalid", "A byte behind the frame."),
        "zstd-two-frames": (GOLDEN * 2, "golden_invalid", "Two frames: unpackers differ in what they do."),
        "zstd-skippable-frame": (
            skippable + GOLDEN,
            "golden_invalid",
            "Before it a frame that unpackers skip.",
        ),
        "zstd-missing": (GOLDEN[13:], "golden_invalid", "MessagePack that is not packed at all."),
        "msgpack-bomb": (
            raw_frame(nested),
            "golden_invalid",
            "Arrays in arrays that say 400,000 items each.",
        ),
        "msgpack-empty-arrays": (
            raw_frame(b"\xdd" + struct.pack(">I", 250_000) + b"\x90" * 250_000),
            "golden_invalid",
            "A quarter of a million empty arrays: sixty times their size in memory.",
        ),
        "msgpack-four-billion": (
            raw_frame(b"\xdd\xff\xff\xff\xff"),
            "golden_invalid",
            "Five bytes that say four billion.",
        ),
        "msgpack-deep-nesting": (raw_frame(b"\x91" * 5000), "golden_invalid", "Arrays 5,000 deep."),
        "msgpack-key-twice": (raw_frame(b"\x82\xa1a\x01\xa1a\x02"), "golden_invalid", "A key twice."),
        "msgpack-nan": (raw_frame(b"\xcb" + struct.pack(">d", float("nan"))), "golden_invalid", "NaN."),
        "msgpack-binary": (raw_frame(b"\xc4\x01a"), "golden_invalid", "Binary data, which the schema does not have."),
        "msgpack-tail": (raw_frame(b"\x80\x80"), "golden_invalid", "Two values."),
    }
    for name, (frame, code, what) in stored.items():
        VECTORS.invalid(f"golden-{name}", (code,), what, with_golden(frame))
    changes: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
        "version-2": (lambda value: value.update(version=2), "schema_value_invalid", "Version 2."),
        "key-unknown": (
            lambda value: value.update(note=1),
            "schema_key_unknown",
            "A key that the schema does not have.",
        ),
        "token-beyond-the-vocabulary": (
            lambda value: value["cases"][0].update(greedy_ids=[16]),
            "token_id_beyond_vocabulary",
            "A token outside the vocabulary.",
        ),
        "case-too-long": (
            lambda value: value["cases"][0].update(prompt_ids=[1] * 31),
            "golden_case_too_long",
            "A case of more tokens than the cache has rows.",
        ),
        "case-missing": (
            lambda value: value["cases"].pop(),
            "golden_manifest_mismatch",
            "A case less.",
        ),
    }
    for name, (change, code, what) in changes.items():
        VECTORS.invalid(f"golden-{name}", (code,), what, golden_changed(change))


def with_weights(section: bytes) -> Callable[[BundleParts], object]:
    """Return a change that puts another weight section in."""
    return lambda parts: parts.sections.update({"weights.safetensors": section})


def weights_with_header(text: bytes) -> bytes:
    """Return the weights with another header of the same length."""
    length = int.from_bytes(weights_section()[:LENGTH_BYTES], "little")
    return struct.pack("<Q", length) + text.ljust(length, b" ") + weights_section()[LENGTH_BYTES + length :]


def add_weights() -> None:
    """Add weight sections whose header lies."""
    whole = weights_section()
    length = int.from_bytes(whole[:LENGTH_BYTES], "little")
    text = whole[LENGTH_BYTES : LENGTH_BYTES + length].rstrip(b" ")
    second = b'"kv.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[256,288]}'
    assert second in text

    length_invalid = "safetensors_header_length_invalid"

    def header(old: bytes, new: bytes) -> bytes:
        return weights_with_header(text.replace(old, new, 1))

    sections: dict[str, tuple[bytes, str, str]] = {
        "offsets-overlap": (
            header(b"[256,288]", b"[252,284]"),
            "safetensors_offsets_not_contiguous",
            "Two tensors overlap.",
        ),
        "offsets-hole": (
            header(b"[256,288]", b"[260,292]"),
            "safetensors_offsets_not_contiguous",
            "Bytes between tensors.",
        ),
        "offsets-past-the-end": (
            header(b'[2,4],"data_offsets":[256,288]', b'[3,4],"data_offsets":[256,304]'),
            "safetensors_truncated",
            "A tensor ends after the section.",
        ),
        "offsets-turned-round": (header(b"[256,288]", b"[288,256]"), "safetensors_size_mismatch", "End before begin."),
        "offsets-negative": (header(b"[256,288]", b"[-1,31]"), "safetensors_header_malformed", "A negative offset."),
        "offsets-true": (header(b"[256,288]", b"[256,true]"), "safetensors_header_malformed", "true as an offset."),
        "shape-other-than-bytes": (header(b"[2,4]", b"[2,5]"), "safetensors_size_mismatch", "Shape and bytes differ."),
        "shape-product-overflows": (
            header(b'"shape":[2,4]', b'"shape":[4294967296,4294967296,8]'),
            "safetensors_size_mismatch",
            "Sizes whose product is 2^67.",
        ),
        "dtype-unknown": (
            header(b'"F32","shape":[2,4]', b'"F33","shape":[2,4]'),
            "safetensors_dtype_unknown",
            "A dtype nobody knows.",
        ),
        "duplicate-tensor": (header(b'"kv.weight"', b'"embed.weight"'), "json_duplicate_key", "A tensor twice."),
        "header-array": (weights_with_header(b"[]"), "safetensors_header_malformed", "The header is an array."),
        "header-length-zero": (bytes(8) + whole[8:], length_invalid, "A header of no bytes."),
        "header-length-2-63": (
            struct.pack("<Q", 2**63) + whole[8:],
            "safetensors_header_length_invalid",
            "A header of 2^63 bytes.",
        ),
        "header-past-the-end": (
            struct.pack("<Q", len(whole)) + whole[8:],
            "safetensors_truncated",
            "A header past the end.",
        ),
        "trailing-bytes": (whole + bytes(4), "safetensors_trailing_bytes", "Four bytes behind the last tensor."),
        "cut": (whole[:-4], "safetensors_truncated", "The last number is missing."),
        "seven-bytes": (whole[:7], "safetensors_truncated", "Not even a length."),
    }
    for name, (section, code, what) in sections.items():
        VECTORS.invalid(f"weights-{name}", (code,), what, bent(with_weights(section)), load=code)
    renamed = weights_with_header(text.replace(b'"kv.weight"', b'"vk.weight"'))
    VECTORS.invalid(
        "weights-renamed",
        ("weight_reference_unknown", "weight_unreferenced"),
        "A tensor has another name than the engines call it by.",
        bent(with_weights(renamed)),
        load="weight_reference_unknown",
    )

    def miscounted(parts: BundleParts) -> None:
        parts.manifest["weights"]["tensor_count"] = 3

    VECTORS.invalid(
        "weights-miscounted", ("weights_summary_mismatch",), "The manifest counts one more.", bent(miscounted)
    )


add_golden()
add_weights()
