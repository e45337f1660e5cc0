"""Write small ONNX graphs, without the onnx package.

Field numbers are those of ``onnx.proto``: ModelProto.ir_version = 1, .graph = 7, .opset_import = 8;
OperatorSetIdProto.domain = 1, .version = 2; GraphProto.node = 1, .name = 2, .initializer = 5, .input = 11,
.output = 12; NodeProto.input = 1, .output = 2, .name = 3, .op_type = 4, .attribute = 5, .domain = 7;
AttributeProto.name = 1, .f = 2, .i = 3, .s = 4, .t = 5, .g = 6, .type = 20; TensorProto.dims = 1, .data_type = 2,
.name = 8, .raw_data = 9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from rowpack_loaders.onnx_wire import GRAPH_INITIALIZER, GRAPH_NODE, MODEL_GRAPH
from rowpack_loaders.protobuf_wire import FIXED32, encoded_field, encoded_integer

IR_VERSION = 10
OPSETS = {"": 20, "com.microsoft": 1}

_FLOAT, _INTEGER, _TEXT, _TENSOR, _GRAPH = 1, 2, 3, 4, 5


def float_attribute(name: str, value: float) -> bytes:
    """Return the content of an AttributeProto that is a float32."""
    return _attribute(name, _FLOAT, bytes((2 << 3 | FIXED32,)) + struct.pack("<f", value))


def integer_attribute(name: str, value: int) -> bytes:
    """Return the content of an AttributeProto that is an integer."""
    return _attribute(name, _INTEGER, encoded_integer(3, value))


def text_attribute(name: str, value: str) -> bytes:
    """Return the content of an AttributeProto that is a text."""
    return _attribute(name, _TEXT, encoded_field(4, value.encode()))


def tensor_attribute(name: str, value: bytes) -> bytes:
    """Return the content of an AttributeProto that is a tensor, given by the content of its TensorProto."""
    return _attribute(name, _TENSOR, encoded_field(5, value))


def graph_attribute(name: str, value: bytes) -> bytes:
    """Return the content of an AttributeProto that is a graph, given by the content of its GraphProto."""
    return _attribute(name, _GRAPH, encoded_field(6, value))


def tensor(data_type: int, shape: Iterable[int], *, name: str = "", data: bytes = b"") -> bytes:
    """Return the content of a TensorProto that holds ``data``, little-endian."""
    extents = b"".join(encoded_integer(1, extent) for extent in shape)
    named = encoded_field(8, name.encode()) if name else b""
    return extents + encoded_integer(2, data_type) + named + encoded_field(9, data)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], *attributes: bytes, domain: str = "") -> bytes:
    """Return the field of a graph that is a node, called as its first output."""
    parts = [
        *(encoded_field(1, name.encode()) for name in inputs),
        *(encoded_field(2, name.encode()) for name in outputs),
        encoded_field(3, outputs[0].encode()),
        encoded_field(4, operator.encode()),
        *(encoded_field(5, attribute) for attribute in attributes),
        encoded_field(7, domain.encode()) if domain else b"",
    ]
    return encoded_field(GRAPH_NODE, b"".join(parts))


def graph(name: str, fields: Iterable[bytes], *, initializers: Iterable[bytes] = ()) -> bytes:
    """Return the content of a GraphProto of ``fields`` (nodes, inputs, outputs) and initializers' contents."""
    return b"".join(
        [
            *fields,
            encoded_field(2, name.encode()),
            *(encoded_field(GRAPH_INITIALIZER, initializer) for initializer in initializers),
        ]
    )


def model(graph_content: bytes, opsets: Mapping[str, int] = OPSETS) -> bytes:
    """Return a ModelProto."""
    imports = (encoded_field(1, domain.encode()) + encoded_integer(2, version) for domain, version in opsets.items())
    return b"".join(
        [
            encoded_integer(1, IR_VERSION),
            encoded_field(MODEL_GRAPH, graph_content),
            *(encoded_field(8, entry) for entry in imports),
        ]
    )


def _attribute(name: str, kind: int, value: bytes) -> bytes:
    return encoded_field(1, name.encode()) + value + encoded_integer(20, kind)
