"""Count the constants of a graph: what an engine made from it carries along as weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto

# Bits of an element; what is not listed here has no constants in our graphs.
_BITS: dict[int, int] = {
    TensorProto.FLOAT: 32,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT64: 64,
    TensorProto.INT32: 32,
    TensorProto.INT8: 8,
    TensorProto.UINT8: 8,
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.BOOL: 8,
}
_BLOCK_PRODUCT = "MatMulNBits"
_ROW_PRODUCT = "MatMulIntegerToFloat"
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class ConstantBytes:
    """Bytes of a graph's constants: ``external`` in the weight section, ``inline`` in the graph itself.

    ``external_in_float32`` is what the external ones take where halves are widened to float32. Beside weights in
    blocks a table in half precision is only looked up in, and stays as it is. ``packed`` is what ONNX Runtime packs
    weights in blocks into for each session, and ``packed_from`` the bytes of the external ones it needs no more then.
    """

    external: int
    inline: int
    external_in_float32: int
    packed: int = 0
    packed_from: int = 0
    bfloat16: int = 0

    @property
    def total(self) -> int:
        """Bytes of all constants as they are stored."""
        return self.external + self.inline

    @property
    def held_in_float32(self) -> int:
        """Bytes of the external constants as a session on the processor holds them: widened, or packed."""
        return self.external_in_float32 - self.packed_from + self.packed


def constant_bytes(model: onnx.ModelProto) -> ConstantBytes:
    """Return the bytes of every constant that ``model`` holds, each once.

    A tensor that a graph holds under two names (an embedding and an output projection of equal values) is two
    constants; scales of quantised weights are constants like any other.
    """
    external = inline = widened = bfloat16 = 0
    looked_up = _only_looked_up(model.graph)
    for tensor in _constants(model.graph):
        byte_count = tensor_bytes(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            external += byte_count
            is_widened = tensor.data_type in _HALVES and tensor.name not in looked_up
            widened += byte_count * (2 if is_widened else 1)
            bfloat16 += byte_count if tensor.data_type == TensorProto.BFLOAT16 else 0
        else:
            inline += byte_count
    return ConstantBytes(external, inline, widened, *_packed_bytes(model.graph), bfloat16)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor's values; elements narrower than a byte are packed."""
    bits: int = math.prod(tensor.dims) * _BITS[tensor.data_type]
    return -(-bits // 8)


def _only_looked_up(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tables that Gather reads, and nothing else, in a graph with weights in whole numbers."""
    if all(node.op_type not in (_BLOCK_PRODUCT, _ROW_PRODUCT) for node in graph.node):
        return set()
    tables = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    return tables - {name for node in graph.node if node.op_type != "Gather" for name in node.input}


def largest_packed_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of the largest of the weights in blocks that ONNX Runtime packs; 0 where there is none.

    It holds them once more while it packs.
    """
    return max((packed for packed, _ in _packed_products(model.graph)), default=0)


def _packed_bytes(graph: onnx.GraphProto) -> tuple[int, int]:
    """Return the bytes that weights in blocks take packed, and the stored bytes they are made from."""
    products = list(_packed_products(graph))
    return sum(packed for packed, _ in products), sum(stored for _, stored in products)


def _packed_products(graph: onnx.GraphProto) -> Iterator[tuple[int, int]]:
    """Yield for each product with weights in blocks what they take packed, and the stored bytes they are made from."""
    stored = {tensor.name: tensor_bytes(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == _BLOCK_PRODUCT:
            codes, scales, zero_points = (stored[name] for name in node.input[1:4])
            yield packed_bytes(codes, scales), codes + scales + zero_points


def packed_bytes(code_bytes: int, scale_bytes: int) -> int:
    """Return what weights in blocks take packed: the codes, the scales, and a float32 sum for each block.

    Measured with ONNX Runtime 1.32 (tests/quantization).
    """
    return code_bytes + 2 * scale_bytes


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _constants(attribute.g)
