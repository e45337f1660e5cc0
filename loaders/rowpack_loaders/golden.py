"""Read and write golden vectors: prompts with the tokens and logits that a right engine gives for them.

``golden.msgpack.zst`` is one MessagePack object in one zstandard frame; ``schema/golden.schema.json``
describes it:

    {"version": 1, "producer": {"name", "version"},
     "cases": [{"kind", "prompt_ids", "greedy_ids", "last_row_top": [[id, logit]], "smallest_top2_gap"}]}

``greedy_ids`` follow the prompt without stopping at any token; ``last_row_top`` are the largest logits of
the prompt's last row, largest first; ``smallest_top2_gap`` is the closest call among the greedy choices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_msgpack import unpack_msgpack
from rowpack_loaders.zstd_frame import FrameError, FrameTooLargeError, unpack_one_frame

GOLDEN_SECTION = "golden.msgpack.zst"
DECODED_LIMIT_BYTES = 16 * 2**20
GOLDEN_VERSION = 1
_COMPRESSION_LEVEL = 19


@dataclass(frozen=True)
class GoldenCase:
    """One prompt and what a right engine answers."""

    kind: str
    prompt_ids: tuple[int, ...]
    greedy_ids: tuple[int, ...]
    last_row_top: tuple[tuple[int, float], ...]
    smallest_top2_gap: float


@dataclass(frozen=True)
class GoldenVectors:
    """The cases, and the program and version that computed them."""

    producer_name: str
    producer_version: str
    cases: tuple[GoldenCase, ...]


def encode_golden(vectors: GoldenVectors) -> bytes:
    """Return the section's bytes; the same vectors give the same bytes (by one version of zstandard)."""
    import msgpack
    import zstandard

    packed: bytes = msgpack.packb(
        {
            "version": GOLDEN_VERSION,
            "producer": {"name": vectors.producer_name, "version": vectors.producer_version},
            "cases": [_case_as_object(case) for case in vectors.cases],
        },
        use_bin_type=True,
    )
    compressor = zstandard.ZstdCompressor(
        level=_COMPRESSION_LEVEL, threads=0, write_checksum=False, write_content_size=True
    )
    encoded: bytes = compressor.compress(packed)
    return encoded


def decode_golden(data: bytes, *, where: str = GOLDEN_SECTION, limit_bytes: int = DECODED_LIMIT_BYTES) -> GoldenVectors:
    """Return the vectors in a section's bytes; never unpack more than ``limit_bytes``, whatever the data
    claims.

    Raises :class:`RowpackError` ``golden_invalid`` with the place of the first thing that is wrong, and
    ``golden_too_large``.
    """
    value = unpack_golden(data, where=where, limit_bytes=limit_bytes)
    if not isinstance(value, dict):
        raise _invalid(where, value, "an object")
    if value.get("version") != GOLDEN_VERSION:
        raise _invalid(f"{where}#/version", value.get("version"), str(GOLDEN_VERSION))
    cases, producer = value.get("cases"), value.get("producer")
    if not isinstance(cases, list) or not cases:
        raise _invalid(f"{where}#/cases", cases, "a filled array")
    if not isinstance(producer, dict):
        raise _invalid(f"{where}#/producer", producer, "an object")
    return GoldenVectors(
        _text(producer.get("name"), f"{where}#/producer/name"),
        _text(producer.get("version"), f"{where}#/producer/version"),
        tuple(_case(case, f"{where}#/cases/{index}") for index, case in enumerate(cases)),
    )


def unpack_golden(data: bytes, *, where: str = GOLDEN_SECTION, limit_bytes: int = DECODED_LIMIT_BYTES) -> object:
    """Return the object in a section's bytes without looking at its form; errors are those of decode_golden."""
    return _unpack(_decompress(data, where, limit_bytes), where)


def _case_as_object(case: GoldenCase) -> dict[str, object]:
    return {
        "kind": case.kind,
        "prompt_ids": list(case.prompt_ids),
        "greedy_ids": list(case.greedy_ids),
        "last_row_top": [[token_id, float(logit)] for token_id, logit in case.last_row_top],
        "smallest_top2_gap": float(case.smallest_top2_gap),
    }


def _case(value: object, where: str) -> GoldenCase:
    if not isinstance(value, dict):
        raise _invalid(where, value, "an object")
    gap: Any = value.get("smallest_top2_gap")
    if not _is_number(gap) or gap < 0:
        raise _invalid(f"{where}/smallest_top2_gap", gap, "a number from 0")
    return GoldenCase(
        _text(value.get("kind"), f"{where}/kind"),
        _token_ids(value.get("prompt_ids"), f"{where}/prompt_ids"),
        _token_ids(value.get("greedy_ids"), f"{where}/greedy_ids"),
        _top_logits(value.get("last_row_top"), f"{where}/last_row_top"),
        float(gap),
    )


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _invalid(where, value, "a text")
    return value


def _token_ids(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_token_id, value)):
        raise _invalid(where, value, "a filled array of integers from 0")
    return tuple(value)


def _top_logits(value: object, where: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or not value:
        raise _invalid(where, value, "a filled array of [token id, logit]")
    pairs = []
    for entry in value:
        if not (isinstance(entry, list) and len(entry) == 2 and _is_token_id(entry[0]) and _is_number(entry[1])):
            raise _invalid(where, entry, "[token id, logit]")
        pairs.append((entry[0], float(entry[1])))
    return tuple(pairs)


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _decompress(data: bytes, where: str, limit_bytes: int) -> bytes:
    try:
        return unpack_one_frame(data, limit_bytes)
    except FrameError as error:
        raise RowpackError(
            "golden_invalid",
            "The golden vectors cannot be decompressed",
            where=where,
            found=str(error)[:200],
            expected="one zstandard frame",
        ) from error
    except FrameTooLargeError as error:
        raise RowpackError(
            "golden_too_large",
            "The golden vectors are larger than any reader takes",
            where=where,
            found=str(error),
            expected=f"at most {limit_bytes} bytes",
        ) from error


def _unpack(packed: bytes, where: str) -> object:
    try:
        return unpack_msgpack(packed)
    except ValueError as error:
        raise RowpackError(
            "golden_invalid",
            "The golden vectors are not MessagePack of the kinds that JSON has",
            where=where,
            found=str(error)[:200],
            expected="one MessagePack object",
        ) from error


def _invalid(where: str, found: object, expected: str) -> RowpackError:
    return RowpackError(
        "golden_invalid",
        "The golden vectors have a value of the wrong form",
        where=where,
        found=repr(found)[:80],
        expected=expected,
    )
