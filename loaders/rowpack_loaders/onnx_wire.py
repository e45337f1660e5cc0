"""Read and change where an ONNX model's weights lie, without the onnx package.

A weight is an initializer of the main graph with external data. Field numbers are those of ``onnx.proto``:

    ModelProto.graph = 7; GraphProto.initializer = 5;
    TensorProto.dims = 1, .data_type = 2, .name = 8, .external_data = 13, .data_location = 14;
    StringStringEntryProto.key = 1, .value = 2; GraphProto.input = 11; ValueInfoProto.name = 1, .type = 2;
    TypeProto.tensor_type = 1; TypeProto.Tensor.elem_type = 1, .shape = 2; TensorShapeProto.dim = 1;
    Dimension.dim_value = 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rowpack_loaders.protobuf_wire import (
    LENGTH_DELIMITED,
    VARINT,
    Message,
    encoded_field,
    encoded_varint,
    fields,
    malformed,
)

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_EXTERNAL_DATA = 13
_GRAPH_INPUT = 11
_TENSOR_DIMS = 1
_TENSOR_DATA_TYPE = 2
_TENSOR_NAME = 8
_TENSOR_DATA_LOCATION = 14
_ENTRY_KEY = 1
_ENTRY_VALUE = 2
_EXTERNAL = 1

# Enough for 64 bits; int() of a longer text would take quadratic time.
_LONGEST_NUMBER_TEXT = 20

DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8_e4m3",
    19: "float8_e5m2",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1",
    24: "float8_e8m0",
}
"""TensorProto.DataType by the names that manifests use; what no engine of a bundle has is left out."""


@dataclass(frozen=True)
class ExternalData:
    """An initializer whose bytes lie elsewhere: a file name, and offset and length as far as they are given.

    ``other_keys`` are those beside ``location``, ``offset`` and ``length``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    location: str
    offset_bytes: int
    length_bytes: int | None
    other_keys: tuple[str, ...] = ()


def external_data(model: bytes, *, where: str) -> list[ExternalData]:
    """Return the external references of the main graph's initializers; raise ``onnx_malformed`` for broken bytes."""
    references: list[ExternalData] = []
    graph = Message(memoryview(model), where).message(MODEL_GRAPH)
    if graph is None:
        return references
    for tensor in Message(graph, where).messages(GRAPH_INITIALIZER):
        reference = read_reference(Message(tensor, where))
        if reference is not None:
            references.append(reference)
    return references


def read_reference(tensor: Message) -> ExternalData | None:
    """Return where a TensorProto's bytes lie, or None when it holds them itself; a tensor that says both is refused."""
    name = tensor.text(_TENSOR_NAME)
    entries: dict[str, str] = {}
    for entry in tensor.messages(TENSOR_EXTERNAL_DATA):
        pair = Message(entry, tensor.where)
        key = pair.text(_ENTRY_KEY)
        if key in entries:
            raise malformed(tensor.where, f"{key[:40]!r} twice in the external data of {name[:80]!r}", "each key once")
        entries[key] = pair.text(_ENTRY_VALUE)
    is_external = tensor.integer(_TENSOR_DATA_LOCATION) == _EXTERNAL
    if is_external != bool(entries):
        raise malformed(
            tensor.where, f"external data of {name[:80]!r} said by halves", "data_location and external_data"
        )
    if not entries:
        return None
    length = entries.get("length")
    return ExternalData(
        name,
        tensor_dtype(tensor),
        tensor.integers(_TENSOR_DIMS),
        entries.get("location", ""),
        _number(entries.get("offset", "0"), name, tensor.where),
        None if length is None else _number(length, name, tensor.where),
        tuple(sorted(entries.keys() - {"location", "offset", "length"})),
    )


def tensor_dtype(tensor: Message) -> str:
    """Return the dtype of a TensorProto by the name that manifests use."""
    number = tensor.integer(_TENSOR_DATA_TYPE)
    return DTYPES.get(number, f"type {number}")


def relocate_external_data(model: bytes, location: str, added_offset_bytes: int, *, where: str) -> bytes:
    """Return ``model`` with every external reference moved into the file ``location``, further in by the offset.

    The bytes of a section are found in the bundle that holds it in this way, so nothing is unpacked. Raises
    ``onnx_malformed``.
    """

    def tensor(data: memoryview) -> bytes:
        reference = read_reference(Message(data, where))
        if reference is None:
            return bytes(data)
        kept = [whole for number, _, _, whole in fields(data, where) if number != TENSOR_EXTERNAL_DATA]
        facts = {"location": location, "offset": str(reference.offset_bytes + added_offset_bytes)}
        if reference.length_bytes is not None:
            facts["length"] = str(reference.length_bytes)
        entries = [
            encoded_field(
                TENSOR_EXTERNAL_DATA,
                encoded_field(_ENTRY_KEY, key.encode()) + encoded_field(_ENTRY_VALUE, text.encode()),
            )
            for key, text in facts.items()
        ]
        return b"".join([*kept, *entries])

    def graph(data: memoryview) -> bytes:
        return _replace_fields(data, GRAPH_INITIALIZER, tensor, where)

    return _replace_fields(memoryview(model), MODEL_GRAPH, graph, where)


def weights_as_inputs(model: bytes, *, where: str) -> bytes:
    """Return ``model`` with every initializer that has external data turned into an input of its name and type.

    A runtime that can replace inputs by values of its own then needs no file. Raises ``onnx_malformed``.
    """

    def graph(data: memoryview) -> bytes:
        kept: list[bytes | memoryview] = []
        inputs: list[bytes] = []
        for number, wire_type, value, whole in fields(data, where):
            tensor = None
            if number == GRAPH_INITIALIZER and wire_type == LENGTH_DELIMITED and not isinstance(value, int):
                tensor = Message(value, where)
            if tensor is not None and read_reference(tensor) is not None:
                inputs.append(encoded_field(_GRAPH_INPUT, _value_info(tensor)))
            else:
                kept.append(whole)
        return b"".join([*kept, *inputs])

    return _replace_fields(memoryview(model), MODEL_GRAPH, graph, where)


def _value_info(tensor: Message) -> bytes:
    """Return the ValueInfoProto of a TensorProto."""
    extents = (_varint_field(1, extent) for extent in tensor.integers(_TENSOR_DIMS))
    shape = b"".join(encoded_field(1, extent) for extent in extents)
    tensor_type = _varint_field(1, tensor.integer(_TENSOR_DATA_TYPE)) + encoded_field(2, shape)
    return encoded_field(1, tensor.text(_TENSOR_NAME).encode()) + encoded_field(2, encoded_field(1, tensor_type))


def _varint_field(number: int, value: int) -> bytes:
    return encoded_varint(number << 3 | VARINT) + encoded_varint(value)


def _replace_fields(data: memoryview, wanted: int, change: Callable[[memoryview], bytes], where: str) -> bytes:
    """Return ``data`` with every length-delimited field ``wanted`` passed through ``change``."""
    parts: list[bytes | memoryview] = []
    for number, wire_type, value, whole in fields(data, where):
        if number == wanted and wire_type == LENGTH_DELIMITED and not isinstance(value, int):
            parts.append(encoded_field(number, change(value)))
        else:
            parts.append(whole)
    return b"".join(parts)


def _number(text: str, name: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER_TEXT):
        raise malformed(where, f"initializer {name[:80]!r} with {text[:40]!r} as a place", "decimal numbers")
    return int(text)
