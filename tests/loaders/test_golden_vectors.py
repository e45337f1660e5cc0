"""The golden section: what is written is read, and nothing hostile costs memory or is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgpack
import pytest
import zstandard

from rowpack_loaders import RowpackError
from rowpack_loaders.golden import GoldenCase, GoldenVectors, decode_golden, encode_golden

CASE = GoldenCase("text", (5, 6, 0), (7, 8), ((7, 3.5), (1, -2.25)), 0.125)
VECTORS = GoldenVectors("rowpack", "0.1.0", (CASE, GoldenCase("repeat", (1,) * 64, (2,), ((2, 1.0),), 0.0)))
SCHEMA = Path(__file__).resolve().parents[2] / "schema" / "golden.schema.json"


def packed(value: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgpack.packb(value))


def as_object() -> dict[str, Any]:
    value: dict[str, Any] = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(encode_golden(VECTORS)))
    return value


def test_what_is_written_is_read() -> None:
    assert decode_golden(encode_golden(VECTORS)) == VECTORS


def test_the_same_vectors_give_the_same_bytes() -> None:
    assert encode_golden(VECTORS) == encode_golden(decode_golden(encode_golden(VECTORS)))


def test_what_is_written_follows_the_schema() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(as_object())


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda value: value.update(version=2), "#/version"),
        (lambda value: value.update(cases=[]), "#/cases"),
        (lambda value: value.update(producer=None), "#/producer"),
        (lambda value: value["producer"].update(name=""), "#/producer/name"),
        (lambda value: value["cases"][1].update(kind=3), "#/cases/1/kind"),
        (lambda value: value["cases"][0].update(prompt_ids=[]), "#/cases/0/prompt_ids"),
        (lambda value: value["cases"][0].update(prompt_ids=[True]), "#/cases/0/prompt_ids"),
        (lambda value: value["cases"][0].update(greedy_ids=[-1]), "#/cases/0/greedy_ids"),
        (lambda value: value["cases"][0].update(greedy_ids=[2**31]), "#/cases/0/greedy_ids"),
        (lambda value: value["cases"][0].update(last_row_top=[[1]]), "#/cases/0/last_row_top"),
        (lambda value: value["cases"][0].update(last_row_top=[[1, float("nan")]]), ""),
        (lambda value: value["cases"][0].update(smallest_top2_gap=-1.0), "#/cases/0/smallest_top2_gap"),
        (lambda value: value["cases"][0].pop("smallest_top2_gap"), "#/cases/0/smallest_top2_gap"),
    ],
)
def test_a_value_of_the_wrong_form_is_named(change: Any, place: str) -> None:
    value = as_object()
    change(value)
    with pytest.raises(RowpackError) as caught:
        decode_golden(packed(value), where="g")
    assert caught.value.code == "golden_invalid"
    assert caught.value.problem.where == f"g{place}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no frame",
        encode_golden(VECTORS)[:-5],
        zstandard.ZstdCompressor().compress(b"\xc1"),
        zstandard.ZstdCompressor().compress(msgpack.packb({}) + b"\x00"),
        zstandard.ZstdCompressor().compress(b"\x91" * 5000),  # arrays nested without end
        zstandard.ZstdCompressor().compress(b"\xdd\xff\xff\xff\xff"),  # an array of four billion
        encode_golden(VECTORS) + b"\0",  # bytes that no reader would look at
        encode_golden(VECTORS) * 2,
        b"\x50\x2a\x4d\x18\x01\0\0\0x" + encode_golden(VECTORS),  # a frame that unpackers skip
        packed([1, 2]),
        packed({1: 2}),
    ],
)
def test_what_is_not_golden_vectors_is_refused(data: bytes) -> None:
    with pytest.raises(RowpackError) as caught:
        decode_golden(data)
    assert caught.value.code == "golden_invalid"


def test_a_bomb_is_refused_without_unpacking_it() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\x00" * (1 << 26))
    assert len(bomb) < 1 << 13
    with pytest.raises(RowpackError) as caught:
        decode_golden(bomb, limit_bytes=1 << 20)
    assert caught.value.code == "golden_too_large"


def test_a_frame_that_lies_about_its_size_is_not_believed() -> None:
    content = msgpack.packb(as_object())
    frame = bytearray(zstandard.ZstdCompressor().compress(content))
    # The frame header states the content size in two bytes, less 256.
    assert frame[4] >> 6 == 1
    assert int.from_bytes(frame[5:7], "little") + 256 == len(content)
    frame[5:7] = b"\xff\xff"
    with pytest.raises(RowpackError):
        decode_golden(bytes(frame))
