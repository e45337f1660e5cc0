"""Read and change what a loader needs of an ONNX model's bytes, without the onnx package.

Only the protobuf wire format is followed (varints and length-delimited fields); every length is checked against the
bytes that hold it. Field numbers are those of ``onnx.proto``:

    ModelProto.graph = 7; GraphProto.initializer = 5;
    TensorProto.name = 8, .external_data = 13; StringStringEntryProto.key = 1, .value = 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rowpack_loaders.errors import RowpackError

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER = 5
_TENSOR_NAME = 8
_TENSOR_EXTERNAL_DATA = 13
_ENTRY_KEY = 1
_ENTRY_VALUE = 2

_VARINT = 0
_FIXED64 = 1
_LENGTH_DELIMITED = 2
_FIXED32 = 5
_VARINT_LIMIT_BYTES = 10


@dataclass(frozen=True)
class ExternalData:
    """Where an initializer's bytes lie: a file name, and offset and length as far as they are given."""

    name: str
    location: str
    offset_bytes: int
    length_bytes: int | None


def external_data(model: bytes, *, where: str) -> list[ExternalData]:
    """Return the external references of the main graph's initializers; raise ``onnx_malformed`` for broken bytes."""
    references: list[ExternalData] = []

    def note(reference: ExternalData) -> ExternalData:
        references.append(reference)
        return reference

    _rewrite_initializers(model, where, note)
    return references


def relocate_external_data(model: bytes, location: str, added_offset_bytes: int, *, where: str) -> bytes:
    """Return ``model`` with every external reference moved into the file ``location``, further in by the offset.

    The bytes of a section are found in the bundle that holds it in this way, so nothing is unpacked. Raises
    ``onnx_malformed``.
    """
    return _rewrite_initializers(
        model,
        where,
        lambda reference: ExternalData(
            reference.name, location, reference.offset_bytes + added_offset_bytes, reference.length_bytes
        ),
    )


def _rewrite_initializers(model: bytes, where: str, change: Callable[[ExternalData], ExternalData]) -> bytes:
    def tensor(data: memoryview) -> bytes:
        name, entries, kept = "", {}, bytearray()
        for number, _, field, whole in _fields(data, where):
            if number == _TENSOR_EXTERNAL_DATA:
                key, value = _entry(field, where)
                entries[key] = value
                continue
            if number == _TENSOR_NAME:
                name = _text(field, where)
            kept += whole
        if not entries:
            return bytes(data)
        reference = change(_reference(name, entries, where))
        facts = {**entries, "location": reference.location, "offset": str(reference.offset_bytes)}
        for key, value in facts.items():
            entry = _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode())
            kept += _field(_TENSOR_EXTERNAL_DATA, entry)
        return bytes(kept)

    def graph(data: memoryview) -> bytes:
        return _replace_fields(data, _GRAPH_INITIALIZER, tensor, where)

    return _replace_fields(memoryview(model), _MODEL_GRAPH, graph, where)


def _replace_fields(data: memoryview, wanted: int, change: Callable[[memoryview], bytes], where: str) -> bytes:
    """Return ``data`` with every length-delimited field ``wanted`` passed through ``change``."""
    parts: list[bytes | memoryview] = []
    for number, wire_type, field, whole in _fields(data, where):
        if number == wanted and wire_type == _LENGTH_DELIMITED:
            parts.append(_field(number, change(field)))
        else:
            parts.append(whole)
    return b"".join(parts)


def _reference(name: str, entries: dict[str, str], where: str) -> ExternalData:
    offset, length = entries.get("offset", "0"), entries.get("length")
    if not offset.isdecimal() or not (length is None or length.isdecimal()):
        raise _malformed(where, f"initializer {name!r} with offset {offset!r}, length {length!r}", "decimal numbers")
    return ExternalData(name, entries.get("location", ""), int(offset), None if length is None else int(length))


def _entry(data: memoryview, where: str) -> tuple[str, str]:
    texts = {number: _text(field, where) for number, _, field, _ in _fields(data, where)}
    return texts.get(_ENTRY_KEY, ""), texts.get(_ENTRY_VALUE, "")


def _text(field: memoryview, where: str) -> str:
    try:
        return bytes(field).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(where, "a name that is not UTF-8", "UTF-8 text") from error


def _fields(data: memoryview, where: str) -> Iterator[tuple[int, int, memoryview, memoryview]]:
    """Yield (field number, wire type, content, whole field with its tag) of a message; content only of type 2."""
    position, end = 0, len(data)
    while position < end:
        start = position
        tag, position = _varint(data, position, where)
        number, wire_type = tag >> 3, tag & 7
        content = data[position:position]
        if wire_type == _VARINT:
            _, position = _varint(data, position, where)
        elif wire_type == _LENGTH_DELIMITED:
            length, position = _varint(data, position, where)
            if length > end - position:
                raise _malformed(where, f"a field of {length} bytes", f"at most {end - position} bytes")
            content = data[position : position + length]
            position += length
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise _malformed(where, f"wire type {wire_type}", "0, 1, 2 or 5")
        if number == 0 or position > end:
            raise _malformed(where, "a field that reaches past its message", "whole fields with a number")
        yield number, wire_type, content, data[start:position]


def _varint(data: memoryview, position: int, where: str) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_LIMIT_BYTES):
        if position + index >= len(data):
            break
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, position + index + 1
    raise _malformed(where, "a number without an end", f"a varint of at most {_VARINT_LIMIT_BYTES} bytes")


def _field(number: int, content: bytes) -> bytes:
    return _encoded_varint(number << 3 | _LENGTH_DELIMITED) + _encoded_varint(len(content)) + content


def _encoded_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _malformed(where: str, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "onnx_malformed",
        "The bytes are not an ONNX model",
        where=where,
        found=found,
        expected=expected,
        remedy="Build the bundle again, or copy it again if it was damaged",
    )
