"""Read and write the header of a safetensors file or section, with every check of its specification.

    bytes 0–7    N, u64 little-endian
    8 … 8+N−1    one UTF-8 JSON object, padded with spaces:
                 name → {"dtype", "shape", "data_offsets": [begin, end]}
    8+N …        tensor bytes, little-endian, row-major, back to back; data_offsets count from 8+N

Offsets in a :class:`TensorEntry` count from the start of the file or section instead, as the external-data
offsets of an ONNX initializer do.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.strict_json import json_pointer, json_type_name, parse_json_object

LENGTH_BYTES = 8
HEADER_LIMIT_BYTES = 100 * 10**6  # the limit of the reference implementation
MAX_RANK = 32
DATA_ALIGNMENT_BYTES = 4096
METADATA_KEY = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}

# Bits, because two of the types are narrower than a byte.
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}

_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors file: its dtype (a safetensors name), shape and place in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    byte_count: int

    @property
    def end_bytes(self) -> int:
        """The offset of the first byte after the tensor."""
        return self.offset_bytes + self.byte_count


def read_header(descriptor: int, *, offset_bytes: int = 0, total_bytes: int, where: str) -> dict[str, TensorEntry]:
    """Return the tensors of the safetensors file or section that starts at ``offset_bytes`` of an open file.

    ``total_bytes`` is the size of the file or section and ``where`` its name in errors. Only the header is
    read, with positioned reads; errors are those of :func:`parse_header`.
    """
    prefix = os.pread(descriptor, LENGTH_BYTES, offset_bytes)
    start = data_start(prefix, total_bytes, where)
    pieces = [prefix]
    have = len(prefix)
    while have < start:
        piece = os.pread(descriptor, start - have, offset_bytes + have)
        if not piece:
            raise _truncated(f"{have} bytes", f"a header of {start} bytes", where)
        pieces.append(piece)
        have += len(piece)
    return parse_header(b"".join(pieces), total_bytes=total_bytes, where=where)


def parse_header(prefix: bytes | memoryview, *, total_bytes: int | None = None, where: str) -> dict[str, TensorEntry]:
    """Return the tensors that the header at the start of ``prefix`` names, in its order.

    ``prefix`` holds at least the length and the whole header; what follows is ignored. ``total_bytes`` is
    the size of the whole file, checked against the end of the last tensor; None checks the header by itself.
    Raises :class:`RowpackError` with a ``safetensors_…`` code, or with a ``json_…`` code for its text.
    """
    start = data_start(prefix[:LENGTH_BYTES], total_bytes, where)
    if len(prefix) < start:
        raise _truncated(f"{len(prefix)} bytes", f"a header of {start} bytes", where)
    text = bytes(prefix[LENGTH_BYTES:start])
    if not text.startswith(b"{"):
        raise RowpackError(
            "safetensors_header_malformed",
            "The safetensors header does not start with an object",
            where=f"{where}, byte {LENGTH_BYTES}",
            found=repr(text[:16]),
            expected="'{'",
        )
    header = f"{where}: header"
    parsed = parse_json_object(text, where=header)
    tensors = {name: _entry(entry, start, name, header) for name, entry in parsed.items() if name != METADATA_KEY}
    _check_metadata(parsed.get(METADATA_KEY), where)
    data_end = _check_contiguous(tensors, start, where)
    if total_bytes is not None:
        _check_end(data_end, total_bytes, where)
    return tensors


def data_start(prefix: bytes | memoryview, total_bytes: int | None, where: str) -> int:
    """Return the offset of the first tensor byte, from the first 8 bytes of a safetensors file or section.

    A caller without a descriptor reads so many bytes and gives them to :func:`parse_header`.
    """
    if len(prefix) < LENGTH_BYTES:
        raise _truncated(f"{len(prefix)} bytes", f"at least {LENGTH_BYTES} bytes", where)
    (length,) = _U64.unpack(prefix)
    if not 2 <= length <= HEADER_LIMIT_BYTES:
        raise RowpackError(
            "safetensors_header_length_invalid",
            "The safetensors header has an impossible length",
            where=f"{where}, byte 0",
            found=str(length),
            expected=f"2 to {HEADER_LIMIT_BYTES}",
            remedy="The file is not in safetensors form, or was damaged: download it again",
        )
    start = LENGTH_BYTES + int(length)
    if total_bytes is not None and start > total_bytes:
        raise _truncated(f"{total_bytes} bytes", f"a header of {start} bytes", where)
    return start


def build_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], *, metadata: dict[str, str] | None = None
) -> bytes:
    """Return the length and header of a safetensors file that holds ``tensors`` back to back.

    ``tensors`` are (name, dtype, shape) in the order of their bytes. The header is padded with spaces so
    that the first tensor starts at a multiple of 4096 bytes; the result depends on the arguments alone.
    Raises ValueError for a repeated name or an unknown dtype, which only a fault of the caller can cause.
    :func:`parse_header` of the result gives the offsets.
    """
    entries: dict[str, object] = {}
    if metadata is not None:
        entries[METADATA_KEY] = metadata
    position = 0
    for name, dtype, shape in tensors:
        if name in entries or name == METADATA_KEY:
            raise ValueError(f"tensor {name!r} is named twice")
        if dtype not in DTYPE_BITS:
            raise ValueError(f"tensor {name!r} has the unknown dtype {dtype!r}")
        end = position + _byte_count(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    padding = -(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT_BYTES
    return _U64.pack(len(text) + padding) + text + b" " * padding


def _byte_count(dtype: str, shape: tuple[int, ...]) -> int:
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise ValueError(f"a {dtype} tensor of shape {list(shape)} does not fill whole bytes")
    return bits // 8


def _entry(value: object, start: int, name: str, header: str) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != _ENTRY_KEYS:
        found = ", ".join(list(value)[:8]) if isinstance(value, dict) else json_type_name(value)
        raise _malformed(_place(header, name), found[:200], "an object with exactly dtype, shape and data_offsets")
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise RowpackError(
            "safetensors_dtype_unknown",
            "A tensor has a dtype that safetensors does not define",
            where=_place(header, name, "dtype"),
            found=repr(dtype)[:64],
            expected=", ".join(DTYPE_BITS),
        )
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        raise _malformed(_place(header, name, "shape"), repr(shape)[:128], f"at most {MAX_RANK} non-negative integers")
    offsets = value["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise _malformed(
            _place(header, name, "data_offsets"), repr(offsets)[:128], "[begin, end], non-negative integers"
        )
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if (end - begin) * 8 != bits:
        raise RowpackError(
            "safetensors_size_mismatch",
            "A tensor's bytes do not match its shape and dtype",
            where=_place(header, name),
            found=f"{end - begin} bytes",
            expected=f"{dtype} {shape}: {-(-bits // 8)} bytes"[:200],
        )
    return TensorEntry(dtype, tuple(shape), start + begin, end - begin)


def _place(header: str, name: str, *keys: str) -> str:
    return f"{header}#{json_pointer(name[:128], *keys)}"


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _check_metadata(metadata: object, where: str) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _malformed(f"{where}: header#/{METADATA_KEY}", json_type_name(metadata), "an object of strings")


def _check_contiguous(tensors: dict[str, TensorEntry], start: int, where: str) -> int:
    position = start
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].offset_bytes, item[1].end_bytes)):
        if entry.offset_bytes != position:
            raise RowpackError(
                "safetensors_offsets_not_contiguous",
                "Tensors overlap or leave bytes between them",
                where=f"{where}: header#{json_pointer(name[:128], 'data_offsets')}",
                found=f"starts at data byte {entry.offset_bytes - start}",
                expected=f"data byte {position - start}, where the tensor before it ends",
            )
        position = entry.end_bytes
    return position


def _check_end(data_end: int, total_bytes: int, where: str) -> None:
    if data_end > total_bytes:
        raise _truncated(f"{total_bytes} bytes", f"{data_end} bytes", where)
    if data_end < total_bytes:
        raise RowpackError(
            "safetensors_trailing_bytes",
            "Bytes that belong to no tensor follow the last one",
            where=f"{where}, byte {data_end}",
            found=f"{total_bytes} bytes",
            expected=f"{data_end} bytes",
            remedy="The file was padded or joined with another: download it again",
        )


def _truncated(found: str, expected: str, where: str) -> RowpackError:
    return RowpackError(
        "safetensors_truncated",
        "The safetensors data ends early",
        where=where,
        found=found,
        expected=expected,
        remedy="The file is incomplete: download or copy it again",
    )


def _malformed(where: str, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "safetensors_header_malformed",
        "The safetensors header has a malformed entry",
        where=where,
        found=found,
        expected=expected,
    )
