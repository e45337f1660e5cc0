"""The safetensors header: written so that the reference library reads it, and read with every check."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load, save

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.safetensors_header import (
    DTYPE_BITS,
    HEADER_LIMIT_BYTES,
    TensorEntry,
    build_header,
    data_start,
    parse_header,
    read_header,
)


def raw(header: object, data: bytes = b"") -> bytes:
    """Return a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """Return a header entry, good unless told otherwise."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_built_headers_are_aligned_deterministic_and_read_by_the_reference_library() -> None:
    tensors = [("z", "F32", (2, 3)), ("a", "I64", ()), ("empty", "U8", (0, 7)), ("ä", "BOOL", (3,))]
    header = build_header(tensors, metadata={"format": "rowpack"})
    assert header == build_header(iter(tensors), metadata={"format": "rowpack"})
    assert len(header) % 4096 == 0
    assert struct.unpack_from("<Q", header)[0] == len(header) - 8
    data = np.arange(6, dtype="<f4").tobytes() + struct.pack("<q", 7) + b"\1\0\1"
    arrays = load(header + data)
    np.testing.assert_array_equal(arrays["z"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert arrays["a"].item() == 7
    assert arrays["empty"].shape == (0, 7)
    assert arrays["ä"].tolist() == [True, False, True]
    entries = parse_header(header + data, total_bytes=len(header) + len(data), where="x")
    assert list(entries) == ["z", "a", "empty", "ä"]
    assert entries["a"] == TensorEntry("I64", (), len(header) + 24, 8)
    assert entries["ä"].end_bytes == len(header) + len(data)


def test_files_of_the_reference_library_are_read() -> None:
    arrays: dict[str, npt.NDArray[Any]] = {"b": np.ones((3, 2), np.float16), "a": np.zeros(5, np.int8)}
    stored = save(arrays, metadata={"made": "here"})
    entries = parse_header(stored, total_bytes=len(stored), where="x")
    for name, array in arrays.items():
        place = entries[name]
        assert place.shape == array.shape
        assert stored[place.offset_bytes : place.end_bytes] == array.tobytes()


def test_a_section_inside_a_file_is_read_at_its_offset(tmp_path: Path) -> None:
    stored = save({"a": np.arange(4, dtype=np.float32)})
    path = tmp_path / "file"
    path.write_bytes(bytes(100) + stored + bytes(50))
    with path.open("rb") as file:
        entries = read_header(file.fileno(), offset_bytes=100, total_bytes=len(stored), where="x")
        assert entries == parse_header(stored, where="x")
        assert data_start(stored[:8], len(stored), "x") == entries["a"].offset_bytes
        os.truncate(path, 104)
        with pytest.raises(RowpackError, match="safetensors_truncated"):
            read_header(file.fileno(), offset_bytes=100, total_bytes=len(stored), where="x")


REFUSED: dict[str, tuple[bytes, str]] = {
    "no bytes": (b"", "safetensors_truncated"),
    "seven bytes": (bytes(7), "safetensors_truncated"),
    "header of no bytes": (bytes(8), "safetensors_header_length_invalid"),
    "header of one byte": (struct.pack("<Q", 1) + b"{", "safetensors_header_length_invalid"),
    "header beyond the limit": (
        struct.pack("<Q", HEADER_LIMIT_BYTES + 1),
        "safetensors_header_length_invalid",
    ),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "safetensors_truncated"),
    "header with a leading space": (raw(b" {}"), "safetensors_header_malformed"),
    "header an array": (raw(b"[]"), "safetensors_header_malformed"),
    "header not JSON": (raw(b"{1}"), "json_malformed"),
    "a tensor twice": (raw(b'{"a":1,"a":1}'), "json_duplicate_key"),
    "entry not an object": (raw({"a": 1}), "safetensors_header_malformed"),
    "entry without shape": (raw({"a": {"dtype": "F32", "data_offsets": [0, 0]}}), "safetensors_header_malformed"),
    "entry with a fourth key": (raw({"a": entry() | {"x": 1}}, bytes(8)), "safetensors_header_malformed"),
    "unknown dtype": (raw({"a": entry("F33")}, bytes(8)), "safetensors_dtype_unknown"),
    "dtype a list": (raw({"a": entry(["F32"])}, bytes(8)), "safetensors_dtype_unknown"),
    "negative size": (raw({"a": entry(shape=(-2,))}, bytes(8)), "safetensors_header_malformed"),
    "size true": (raw({"a": entry(shape=(2, True))}, bytes(8)), "safetensors_header_malformed"),
    "size 2.0": (raw({"a": entry(shape=(2.0,))}, bytes(8)), "safetensors_header_malformed"),
    "33 dimensions": (raw({"a": entry(shape=(1,) * 33)}, bytes(8)), "safetensors_header_malformed"),
    "huge product": (raw({"a": entry(shape=(2**62,) * 32)}, bytes(8)), "safetensors_size_mismatch"),
    "offsets turned round": (raw({"a": entry(offsets=(8, 0))}, bytes(8)), "safetensors_size_mismatch"),
    "three offsets": (raw({"a": entry(offsets=(0, 8, 8))}, bytes(8)), "safetensors_header_malformed"),
    "shape and bytes differ": (raw({"a": entry(shape=(3,))}, bytes(8)), "safetensors_size_mismatch"),
    "half a byte": (raw({"a": entry("F4", (3,), (0, 2))}, bytes(2)), "safetensors_size_mismatch"),
    "overlap": (raw({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "safetensors_offsets_not_contiguous"),
    "hole": (raw({"a": entry(), "b": entry(offsets=(9, 17))}, bytes(17)), "safetensors_offsets_not_contiguous"),
    "start not at zero": (raw({"a": entry(offsets=(1, 9))}, bytes(9)), "safetensors_offsets_not_contiguous"),
    "data cut": (raw({"a": entry()}, bytes(7)), "safetensors_truncated"),
    "a byte too many": (raw({"a": entry()}, bytes(9)), "safetensors_trailing_bytes"),
    "metadata not text": (raw({"__metadata__": {"a": 1}}), "safetensors_header_malformed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_specification_forbids_is_refused(name: str) -> None:
    data, code = REFUSED[name]
    with pytest.raises(RowpackError) as caught:
        parse_header(data, total_bytes=len(data), where="weights")
    assert caught.value.code == code
    assert str(caught.value.problem.where).startswith("weights")


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = raw({"a": entry(), "b": entry(offsets=(8, 16))}, bytes(16))
    for length in range(len(whole)):
        with pytest.raises(RowpackError):
            parse_header(whole[:length], total_bytes=length, where="x")


def test_building_refuses_faults_of_the_caller() -> None:
    with pytest.raises(ValueError, match="twice"):
        build_header([("a", "F32", (1,)), ("a", "F32", (1,))])
    with pytest.raises(ValueError, match="dtype"):
        build_header([("a", "float32", (1,))])
    with pytest.raises(ValueError, match="whole bytes"):
        build_header([("a", "F4", (1,))])


def test_dtype_sizes_are_those_of_the_reference_library() -> None:
    for name, dtype in {"F64": "<f8", "F16": "<f2", "I32": "<i4", "U64": "<u8", "BOOL": "?", "I8": "i1"}.items():
        assert DTYPE_BITS[name] == 8 * np.dtype(dtype).itemsize
