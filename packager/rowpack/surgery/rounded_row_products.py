"""Projections computed in whole numbers: weights and rows of eight bits, each row with a scale of its own.

The exported graph has DequantizeLinear before each Gemm and each lookup. ONNX Runtime's QGemm multiplies bytes by
signed bytes, exactly, which processors have instructions for (VNNI, AMX); what rounds the rows before it and scales
its results is plain operators. A row x with the largest magnitude m becomes q = ⌊127 x / m + ½⌋ + 128, and a product
y = m / 127 · Σ (q − 128) (c − z) · s with the codes c, zero points z and scales s of the weights' rows.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.model import OPSET
from rowpack.surgery.block_projections import is_stored_as
from rowpack.surgery.eight_bit_rows import LARGEST_CODE, SMALLEST_MAGNITUDE
from rowpack.surgery.surgery_pass import surgery_error

OPERATOR = "QGemm"

ROUNDED_ROW_PRODUCT = f"{CONTRIBUTED_DOMAIN}.{OPERATOR}"
"""How an engine says that it needs the operator."""

_MIDDLE = 128
"""The byte that stands for zero: ONNX Runtime's fast products take unsigned rows."""


class MultiplyRoundedRows:
    """Replace DequantizeLinear of whole rows and Gemm by products in whole numbers over the same stored bytes.

    Before a Gather it is replaced by a lookup of the stored rows, which are widened.
    """

    name = "multiply rounded rows"

    def check_before(self, graph: gs.Graph) -> None:
        """Dequantised weights must be constants, read by one product or lookup each."""
        for node in graph.nodes:
            if not _dequantizes_rows(node):
                continue
            readers = [reader.op for reader in node.outputs[0].outputs]
            if readers not in (["Gemm"], ["Gather"]) or not all(
                isinstance(tensor, gs.Constant) for tensor in node.inputs
            ):
                raise surgery_error(
                    self.name,
                    "a dequantised weight is no constant, or read by something else than one projection or lookup",
                    where=node.name,
                    found=", ".join(readers),
                    expected="constants, and one Gemm or Gather",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; products and lookups keep their outputs, and rows of several products are rounded once."""
        emitter = Emitter(graph)
        rounded: dict[int, tuple[Tensor, Tensor]] = {}
        found = [node for node in graph.nodes if _dequantizes_rows(node)]
        for dequantized in found:
            (reader,) = dequantized.outputs[0].outputs
            scope = emitter.at_root(reader.name)
            if reader.op == "Gather":
                _look_up(scope, reader, *dequantized.inputs)
            else:
                rows = reader.inputs[0]
                if id(rows) not in rounded:
                    rounded[id(rows)] = _rounded(scope, rows)
                _multiply(scope, reader, *rounded[id(rows)], *dequantized.inputs)
            dequantized.inputs.clear()
            dequantized.outputs.clear()
            graph.nodes.remove(dequantized)
        if found:
            graph.opset = OPSET

    def check_after(self, graph: gs.Graph) -> None:
        """No weight may be widened any more."""
        for node in graph.nodes:
            if _dequantizes_rows(node):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found=node.op, expected=OPERATOR
                )


def _rounded(scope: Emitter, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Emit the bytes of ``rows`` [rows, columns], and the largest magnitude of each, [rows, 1]."""
    magnitudes = scope.op("Abs", [rows], "magnitudes")
    largest = scope.op("ReduceMax", [magnitudes, scope.ints(-1)], "largest", keepdims=1)
    # A row of zeros is divided by something.
    divisor = scope.op("Max", [largest, scope.floats("smallest", SMALLEST_MAGNITUDE)], "divisor")
    steps = scope.op("Div", [scope.floats("largest_code", LARGEST_CODE), divisor], "steps_per_unit")
    shifted = scope.op(
        "Add", [scope.op("Mul", [rows, steps], "steps"), scope.floats("middle_and_half", _MIDDLE + 0.5)], "shifted"
    )
    return scope.cast(shifted, "uint8", "codes"), divisor


def _multiply(
    scope: Emitter, product: Any, codes: Tensor, divisor: Tensor, weight: Tensor, scales: Tensor, zero_points: Tensor
) -> None:
    """Let the Gemm ``product`` be one of whole numbers."""
    step = scope.scalar("step_of_unit", 1 / LARGEST_CODE, "float32")
    middle = scope.scalar("middle", _MIDDLE, "uint8")
    of_units = scope.op(
        OPERATOR,
        [codes, step, middle, weight, scales, zero_points],
        "of_units",
        domain=CONTRIBUTED_DOMAIN,
        transB=1,
    )
    product.op, product.attrs, product.inputs = "Mul", {}, [of_units, divisor]


def _look_up(scope: Emitter, lookup: Any, table: Tensor, scales: Tensor, zero_points: Tensor) -> None:
    """Let the Gather ``lookup`` give float32 rows of ``table``, bytes [rows, columns]; its output keeps its name."""
    ids = lookup.inputs[1]

    def of_the_rows(part: Tensor, name: str) -> Tensor:
        return scope.op("Gather", [part, ids], f"{name}_of_rows", axis=0)

    def a_row_each(part: Tensor, name: str) -> Tensor:
        return scope.reshape(of_the_rows(part, name), [-1, 1], f"{name}_a_row")

    codes = scope.cast(of_the_rows(table, "codes"), "float32", "codes_float")
    middle = scope.cast(a_row_each(zero_points, "zero_points"), "float32", "zero_points_float")
    steps = scope.op("Sub", [codes, middle], "steps")
    lookup.op, lookup.attrs, lookup.inputs = "Mul", {}, [steps, a_row_each(scales, "scales")]


def _dequantizes_rows(node: Any) -> bool:
    return node.op == "DequantizeLinear" and is_stored_as(node.inputs[0], onnx.TensorProto.INT8)
