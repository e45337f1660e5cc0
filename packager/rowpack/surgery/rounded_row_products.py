"""Projections computed in whole numbers: weights and rows of eight bits, each row with a scale of its own.

The exported graph has DequantizeLinear before each Gemm and each lookup. ONNX Runtime's MatMulIntegerToFloat multiplies
bytes by signed bytes, exactly, which processors have instructions for (VNNI, AMX). With the weight W ``[out, in]`` on
the left it reads the stored bytes where they are mapped, so that nothing is packed or copied at load; what rounds the
rows before it and scales its results is plain operators. A row x with the largest magnitude m and the step d = m / 127
becomes q = round(x / d), and a product y = s · d · Σ (c − 128) q, with the codes c and scales s of the weight's rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from rowpack.block_quantization import ROW_ZERO_POINT
from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.block_projections import check_dequantized, is_stored_as, stored_with_shape
from rowpack.surgery.eight_bit_rows import LARGEST_CODE, SMALLEST_MAGNITUDE
from rowpack.surgery.surgery_pass import surgery_error

OPERATOR = "MatMulIntegerToFloat"

ROUNDED_ROW_PRODUCT = f"{CONTRIBUTED_DOMAIN}.{OPERATOR}"
"""How an engine says that it needs the operator."""

ROUNDING_OPSET = 21
"""The first opset whose QuantizeLinear gives signed bytes without being told a zero point."""


class MultiplyRoundedRows:
    """Replace DequantizeLinear of whole rows and Gemm by products in whole numbers over the same stored bytes.

    Before a Gather it is replaced by a lookup of the stored rows, which are widened.
    """

    name = "multiply rounded rows"

    def check_before(self, graph: gs.Graph) -> None:
        """Dequantised weights must be constants, read by one product or lookup each."""
        for node in graph.nodes:
            if _dequantizes_rows(node):
                check_dequantized(node, self.name)

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; products and lookups keep their outputs, and rows of several products are rounded once."""
        emitter = Emitter(graph)
        rounded: dict[int, tuple[Tensor, Tensor]] = {}
        columns: dict[str, Tensor] = {}
        found = [node for node in graph.nodes if _dequantizes_rows(node)]
        for dequantized in found:
            (reader,) = dequantized.outputs[0].outputs
            scope = emitter.at_root(reader.name)
            weight, scales, _ = dequantized.inputs  # all zero points are the same
            # A head that is tied to the embedding reads the constants that the lookup reads.
            if scales.name not in columns:
                columns[scales.name] = stored_with_shape(scales, [int(scales.shape[0]), 1])
            scale_column = columns[scales.name]
            if reader.op == "Gather":
                _look_up(scope, reader, weight, scale_column)
            else:
                rows = reader.inputs[0]
                if id(rows) not in rounded:
                    rounded[id(rows)] = _rounded(scope, rows)
                _multiply(scope, reader, *rounded[id(rows)], weight, scale_column)
            dequantized.inputs.clear()
            dequantized.outputs.clear()
            graph.nodes.remove(dequantized)
        if found:
            graph.opset = ROUNDING_OPSET

    def check_after(self, graph: gs.Graph) -> None:
        """No weight may be widened any more."""
        for node in graph.nodes:
            if _dequantizes_rows(node):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found=node.op, expected=OPERATOR
                )


def row_zero_points(emitter: Emitter, scales: Tensor) -> Tensor:
    """Return the zero points of whole rows with these ``scales`` [rows], as DequantizeLinear takes them."""
    return emitter.constant("row_zero_points", np.full(int(scales.shape[0]), ROW_ZERO_POINT, np.uint8))


def _rounded(scope: Emitter, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Emit ``rows`` [rows, columns] as columns of signed bytes [columns, rows], and the step of each row [rows]."""
    magnitudes = scope.op("Abs", [rows], "magnitudes")
    largest = scope.op("ReduceMax", [magnitudes, scope.ints(-1)], "largest", keepdims=0)
    # A row of zeros is divided by something.
    divisor = scope.op("Max", [largest, scope.floats("smallest", SMALLEST_MAGNITUDE)], "divisor")
    steps = scope.op("Div", [divisor, scope.floats("largest_code", LARGEST_CODE)], "steps")
    codes = scope.op("QuantizeLinear", [rows, steps], "codes", axis=0, output_dtype=onnx.TensorProto.INT8)
    return scope.transpose(codes, [1, 0], "code_columns"), steps


def _multiply(scope: Emitter, product: Any, codes: Tensor, steps: Tensor, weight: Tensor, scales: Tensor) -> None:
    """Let the Gemm ``product`` be one of whole numbers; ``scales`` [rows of the weight, 1]."""
    one = scope.scalar("one", 1, "float32")
    middle = scope.scalar("middle", ROW_ZERO_POINT, "uint8")
    unscaled = scope.op(OPERATOR, [weight, codes, one, steps, middle], "unscaled", domain=CONTRIBUTED_DOMAIN)
    scaled = scope.op("Mul", [unscaled, scales], "product")
    product.op, product.attrs, product.inputs = "Transpose", {"perm": [1, 0]}, [scaled]


def _look_up(scope: Emitter, lookup: Any, table: Tensor, scales: Tensor) -> None:
    """Let the Gather ``lookup`` give float32 rows of ``table``, bytes [rows, columns], with ``scales`` [rows, 1]."""
    ids = lookup.inputs[1]
    codes = scope.cast(scope.op("Gather", [table, ids], "codes_of_rows", axis=0), "float32", "codes_float")
    steps = scope.op("Sub", [codes, scope.floats("middle", ROW_ZERO_POINT)], "steps")
    scale = scope.op("Gather", [scales, ids], "scales_of_rows", axis=0)
    lookup.op, lookup.attrs, lookup.inputs = "Mul", {}, [steps, scale]


def _dequantizes_rows(node: Any) -> bool:
    is_whole_row = node.op == "DequantizeLinear" and node.attrs.get("axis") == 0 and "block_size" not in node.attrs
    return is_whole_row and is_stored_as(node.inputs[0], onnx.TensorProto.UINT8)
