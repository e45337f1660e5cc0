"""Read and change where an ONNX model's weights lie, without the onnx package.

A weight is an initializer of the main graph with external data. Field numbers are those of ``onnx.proto``:

    ModelProto.graph = 7;
    GraphProto.node = 1, .initializer = 5, .input = 11, .output = 12, .value_info = 13;
    TensorProto.dims = 1, .data_type = 2, .name = 8, .external_data = 13, .data_location = 14;
    StringStringEntryProto.key = 1, .value = 2; ValueInfoProto.name = 1, .type = 2;
    TypeProto.tensor_type = 1; TypeProto.Tensor.elem_type = 1, .shape = 2; TensorShapeProto.dim = 1;
    Dimension.dim_value = 1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rowpack_loaders.protobuf_wire import (
    Message,
    encoded_field,
    encoded_integer,
    malformed,
    messages_among,
    text_pair,
)

MODEL_GRAPH = 7
GRAPH_NODE = 1
GRAPH_INITIALIZER = 5
GRAPH_INPUT = 11
GRAPH_OUTPUT = 12
GRAPH_VALUE_INFO = 13
TENSOR_EXTERNAL_DATA = 13
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

_NUMBERS = {name: number for number, name in DTYPES.items()}
_UNNAMED = "type "


class ExternalData(NamedTuple):
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

    @property
    def data_type(self) -> int:
        """The number of the dtype in ``onnx.proto``."""
        return _NUMBERS.get(self.dtype) or int(self.dtype.removeprefix(_UNNAMED))


class ExternalWeights(NamedTuple):
    """The main graph's initializers with external data, and where in the model's bytes each of them is written.

    ``places`` are (start, end) of each one's field, with its tag; ``graph_place`` is (start, content, end) of the
    graph's, and (0, 0, 0) where there is none.
    """

    references: tuple[ExternalData, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    graph_place: tuple[int, int, int] = (0, 0, 0)


class ReadModel(bytes):
    """The bytes of an ONNX model that were read once for their references: no later reader goes through them again."""

    external: ExternalWeights

    @classmethod
    def of(cls, model: bytes, *, where: str) -> ReadModel:
        """Read ``model``; raise ``onnx_malformed`` for broken bytes."""
        read = cls(model)
        read.external = _read_external(model, where)
        return read


def external_weights(model: bytes, *, where: str) -> ExternalWeights:
    """Return the external references of the main graph's initializers; raise ``onnx_malformed`` for broken bytes."""
    return model.external if isinstance(model, ReadModel) else _read_external(model, where)


def external_data(model: bytes, *, where: str) -> list[ExternalData]:
    """Return the references of :func:`external_weights` alone."""
    return list(external_weights(model, where=where).references)


def _read_external(model: bytes, where: str) -> ExternalWeights:
    graphs = list(messages_among(memoryview(model), MODEL_GRAPH, where))
    if not graphs:
        return ExternalWeights()
    if len(graphs) > 1:
        raise malformed(where, f"{len(graphs)} graphs", "at most one")
    graph, graph_start, graph_end = graphs[0]
    content = graph_end - len(graph)
    references: list[ExternalData] = []
    places: list[tuple[int, int]] = []
    for data, start, end in messages_among(graph, GRAPH_INITIALIZER, where):
        reference = read_reference(Message(data, where))
        if reference is not None:
            references.append(reference)
            places.append((content + start, content + end))
    return ExternalWeights(tuple(references), tuple(places), (graph_start, content, graph_end))


def read_reference(tensor: Message) -> ExternalData | None:
    """Return where a TensorProto's bytes lie, or None when it holds them itself; a tensor that says both is refused."""
    name = tensor.text(_TENSOR_NAME)
    entries: dict[str, str] = {}
    for entry in tensor.messages(TENSOR_EXTERNAL_DATA):
        key, text = text_pair(entry, tensor.where)
        if key in entries:
            raise malformed(tensor.where, f"{key[:40]!r} twice in the external data of {name[:80]!r}", "each key once")
        entries[key] = text
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
    return DTYPES.get(number, f"{_UNNAMED}{number}")


def relocate_external_data(model: bytes, location: str, added_offset_bytes: int, *, where: str) -> bytes:
    """Return ``model`` with every external reference moved into the file ``location``, further in by the offset.

    The bytes of a section are found in the bundle that holds it in this way, so nothing is unpacked. Each initializer
    is written anew from its reference. Raises ``onnx_malformed``.
    """
    weights = external_weights(model, where=where)
    if not weights.references:
        return bytes(model)
    location_entry = _external_entry("location", location)
    graph_start, done, graph_end = weights.graph_place
    parts: list[bytes | memoryview] = []
    whole = memoryview(model)
    for reference, (start, end) in zip(weights.references, weights.places, strict=True):
        entries = location_entry + _external_entry("offset", str(reference.offset_bytes + added_offset_bytes))
        if reference.length_bytes is not None:
            entries += _external_entry("length", str(reference.length_bytes))
        tensor = _described_tensor(reference) + entries + encoded_integer(_TENSOR_DATA_LOCATION, _EXTERNAL)
        parts += whole[done:start], encoded_field(GRAPH_INITIALIZER, tensor)
        done = end
    graph = b"".join([*parts, whole[done:graph_end]])
    return b"".join([whole[:graph_start], encoded_field(MODEL_GRAPH, graph), whole[graph_end:]])


def weights_as_inputs(model: bytes, *, where: str) -> bytes:
    """Return ``model`` with every initializer that has external data turned into an input of its name and type.

    A runtime that can replace inputs by values of its own then needs no file. Raises ``onnx_malformed``.
    """
    weights = external_weights(model, where=where)
    if not weights.references:
        return bytes(model)
    graph_start, done, graph_end = weights.graph_place
    whole = memoryview(model)
    kept: list[bytes | memoryview] = []
    for start, end in weights.places:
        kept.append(whole[done:start])
        done = end
    inputs = (
        encoded_field(GRAPH_INPUT, value_info(reference.name, reference.data_type, reference.shape))
        for reference in weights.references
    )
    graph = b"".join([*kept, whole[done:graph_end], *inputs])
    return b"".join([whole[:graph_start], encoded_field(MODEL_GRAPH, graph), whole[graph_end:]])


def _described_tensor(reference: ExternalData) -> bytes:
    """Return dimensions, type and name of a TensorProto; what says where its bytes lie is to follow."""
    extents = b"".join(encoded_integer(_TENSOR_DIMS, extent) for extent in reference.shape)
    return (
        extents
        + encoded_integer(_TENSOR_DATA_TYPE, reference.data_type)
        + encoded_field(_TENSOR_NAME, reference.name.encode())
    )


def value_info(name: str, data_type: int, shape: Iterable[int]) -> bytes:
    """Return the ValueInfoProto of a tensor; ``data_type`` is the number in ``onnx.proto``."""
    extents = (encoded_integer(1, extent) for extent in shape)
    tensor_type = encoded_integer(1, data_type) + encoded_field(2, b"".join(encoded_field(1, each) for each in extents))
    return encoded_field(1, name.encode()) + encoded_field(2, encoded_field(1, tensor_type))


def _external_entry(key: str, text: str) -> bytes:
    pair = encoded_field(_ENTRY_KEY, key.encode()) + encoded_field(_ENTRY_VALUE, text.encode())
    return encoded_field(TENSOR_EXTERNAL_DATA, pair)


def _number(text: str, name: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER_TEXT):
        raise malformed(where, f"initializer {name[:80]!r} with {text[:40]!r} as a place", "decimal numbers")
    return int(text)
