"""Projections whose weights are blocks of whole numbers: ONNX's form for reading, the runtime's for running.

The exported graph has DequantizeLinear before each Gemm and each lookup, which every tool understands. ONNX Runtime has
one operator for a Gemm and what is before it, MatMulNBits, which reads the very same bytes and widens no weight.
Accuracy level 4 rounds rows to eight bits, each block of a row with a scale of its own. With float32 rows a product of
one row takes three to seven times as long in four bits, and a hundred times in eight, for which there is no such
kernel; beside four-bit weights the rounding moves the logits by next to nothing, beside eight-bit ones by about as much
as the weights do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.dtypes import onnx_type
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.model import OPSET
from rowpack.surgery.block_lookups import look_up_blocks
from rowpack.surgery.surgery_pass import surgery_error

OPERATOR = "MatMulNBits"

BLOCK_PRODUCT = f"{CONTRIBUTED_DOMAIN}.{OPERATOR}"
"""How an engine says that it needs the operator."""

BLOCKED_OPSET = 21
"""The first opset whose DequantizeLinear takes blocks."""

EIGHT_BIT_ROWS = 4
"""The accuracy level of MatMulNBits at which it rounds rows to eight bits."""

_TABLE_POSITION = {"Gemm": 1, "Gather": 0}
"""Which input of an operator is the table of weights."""

_BITS: dict[int, int] = {onnx.TensorProto.UINT8: 8, onnx.TensorProto.UINT4: 4}


class DequantizeBlocks:
    """Put DequantizeLinear before every Gemm and Gather whose table has ``scales``; both maps go by its name.

    Scales of one dimension are those of whole rows.
    """

    name = "dequantize blocks"

    def __init__(self, scales: Mapping[str, Tensor], zero_points: Mapping[str, Tensor]) -> None:
        self._scales = scales
        self._zero_points = zero_points

    def check_before(self, graph: gs.Graph) -> None:
        """Every quantised weight must be read by products and lookups only."""
        for node in graph.nodes:
            read = any(tensor.name in self._scales for tensor in node.inputs)
            multiplied = node.op == "Gemm" and node.attrs.get("transB") == 1
            looked_up = node.op == "Gather" and node.attrs.get("axis", 0) == 0
            if read and not multiplied and not looked_up:
                raise surgery_error(
                    self.name,
                    "a quantised weight is read by something else than a projection or a lookup",
                    where=node.name,
                    found=node.op,
                    expected="Gemm with transB = 1, or Gather of rows",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place."""
        graph.opset = max(graph.opset, BLOCKED_OPSET)
        emitter = Emitter(graph)
        for node in [node for node in graph.nodes if _reads(node, self._scales)]:
            position = _TABLE_POSITION[node.op]
            stored = node.inputs[position]
            scales = self._scales[stored.name]
            blocks: dict[str, Any] = {"axis": 0}
            if len(scales.shape) > 1:
                blocks = {"axis": 1, "block_size": int(stored.shape[1]) // int(scales.shape[1])}
            node.inputs[position] = emitter.at_root(node.name).op(
                "DequantizeLinear",
                [stored, scales, self._zero_points[stored.name]],
                "weight",
                dtype="float32",
                shape=stored.shape,
                **blocks,
            )

    def check_after(self, graph: gs.Graph) -> None:
        """Nothing may read whole numbers."""
        for node in graph.nodes:
            if _reads(node, self._scales):
                raise surgery_error(
                    self.name, "a reader was missed", where=node.name, found=node.op, expected="DequantizeLinear"
                )


class MultiplyBlocks:
    """Replace DequantizeLinear of blocks and Gemm by MatMulNBits over the same stored bytes.

    Before a Gather it is replaced by lookups in these bytes (:mod:`rowpack.surgery.block_lookups`).
    """

    name = "multiply blocks"

    def check_before(self, graph: gs.Graph) -> None:
        """Dequantised weights must be constants in blocks, read by one product or lookup each."""
        for node in graph.nodes:
            if _dequantizes_blocks(node):
                check_dequantized(node, self.name)

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; the product or lookup keeps its name and output."""
        found = [node for node in graph.nodes if _dequantizes_blocks(node)]
        emitter = Emitter(graph)
        as_bytes: dict[str, Tensor] = {}
        for dequantized in found:
            (reader,) = dequantized.outputs[0].outputs
            codes, scales, zero_points = dequantized.inputs
            rows, columns = (int(extent) for extent in codes.shape)
            bits = _bits(codes)
            block = dequantized.attrs["block_size"]
            blocks = columns // block
            # A head that is tied to the embedding reads the constants that the lookup reads.
            for tensor, shape in (
                (codes, [rows, blocks, block * bits // 8]),
                (zero_points, [rows, blocks * bits // 8]),
            ):
                if tensor.name not in as_bytes:
                    as_bytes[tensor.name] = stored_with_shape(tensor, shape, onnx.TensorProto.UINT8)
            stored = [as_bytes[codes.name], scales, as_bytes[zero_points.name]]
            if reader.op == "Gather":
                look_up_blocks(emitter, reader, stored, bits, columns)
            else:
                reader.inputs = [reader.inputs[0], *stored]
                reader.op, reader.domain = OPERATOR, CONTRIBUTED_DOMAIN
                reader.attrs = {
                    "K": columns,
                    "N": rows,
                    "bits": bits,
                    "block_size": block,
                    "accuracy_level": EIGHT_BIT_ROWS,
                }
            dequantized.inputs.clear()
            dequantized.outputs.clear()
            graph.nodes.remove(dequantized)
        if found:
            graph.opset = OPSET

    def check_after(self, graph: gs.Graph) -> None:
        """No weight may be widened any more."""
        for node in graph.nodes:
            if _dequantizes_blocks(node):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found=node.op, expected=OPERATOR
                )


class WidenLookups:
    """Put a Cast to float32 after each Gather of rows from a table that is stored in half precision."""

    name = "widen lookups"

    def __init__(self, tables: frozenset[str]) -> None:
        self._tables = tables

    def check_before(self, graph: gs.Graph) -> None:
        """Such a table must be read by Gather only."""
        for node in graph.nodes:
            if node.op != "Gather" and any(tensor.name in self._tables for tensor in node.inputs):
                raise surgery_error(
                    self.name,
                    "a table in half precision is read by something else than a lookup",
                    where=node.name,
                    found=node.op,
                    expected="Gather",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; the widened rows keep the name."""
        emitter = Emitter(graph)
        for node in [node for node in graph.nodes if self._looks_up(node)]:
            scope = emitter.at_root(node.name)
            rows = scope.op("Gather", list(node.inputs), "stored_rows", **dict(node.attrs))
            node.op, node.attrs, node.inputs = "Cast", {"to": onnx_type("float32")}, [rows]

    def check_after(self, graph: gs.Graph) -> None:
        """Rows must be widened right after they are looked up."""
        for node in graph.nodes:
            readers = node.outputs[0].outputs if self._looks_up(node) else []
            if any(reader.op != "Cast" for reader in readers):
                raise surgery_error(
                    self.name, "a lookup was missed", where=node.name, found="Gather", expected="Gather and Cast"
                )

    def _looks_up(self, node: Any) -> bool:
        return node.op == "Gather" and node.inputs[0].name in self._tables


def _reads(node: Any, names: Mapping[str, Tensor]) -> bool:
    return node.op in _TABLE_POSITION and node.inputs[_TABLE_POSITION[node.op]].name in names


def _dequantizes_blocks(node: Any) -> bool:
    return node.op == "DequantizeLinear" and "block_size" in node.attrs and _bits(node.inputs[0]) > 0


def check_dequantized(node: Any, pass_name: str) -> None:
    """Refuse a DequantizeLinear that a product or lookup over the stored bytes cannot take the place of."""
    readers = [reader.op for reader in node.outputs[0].outputs]
    if readers not in (["Gemm"], ["Gather"]) or not all(isinstance(tensor, gs.Constant) for tensor in node.inputs):
        raise surgery_error(
            pass_name,
            "a dequantised weight is no constant, or read by something else than one projection or lookup",
            where=node.name,
            found=", ".join(readers),
            expected="constants, and one Gemm or Gather",
        )


def is_stored_as(tensor: Tensor, data_type: int) -> bool:
    """Tell whether ``tensor`` is a constant in the weight section of this ONNX data type."""
    proto = _stored_proto(tensor)
    return proto is not None and proto.data_type == data_type


def _bits(tensor: Tensor) -> int:
    proto = _stored_proto(tensor)
    return 0 if proto is None else _BITS.get(proto.data_type, 0)


def _stored_proto(tensor: Tensor) -> onnx.TensorProto | None:
    """Return the reference to the weight section behind a constant."""
    if not isinstance(tensor, gs.Constant) or not isinstance(tensor._values, LazyValues):
        return None
    proto: onnx.TensorProto = tensor._values.tensor
    return proto


def stored_with_shape(tensor: Tensor, shape: list[int], data_type: int | None = None) -> Tensor:
    """Return a constant of the same name over the same bytes of the weight section, as an operator takes them."""
    proto = onnx.TensorProto()
    proto.CopyFrom(_stored_proto(tensor))
    proto.data_type = proto.data_type if data_type is None else data_type
    del proto.dims[:]
    proto.dims.extend(shape)
    return gs.Constant(tensor.name, LazyValues(proto))
