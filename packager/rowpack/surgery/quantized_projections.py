"""Write projections with quantised weights as a compiler recognises them: quantise and dequantise, explicitly.

    y_t = m_t · (Q(x_t / m_t) · Wᵀ),  m_t = the largest magnitude in row t

A row is brought to [−1, 1] by its own largest magnitude before it is rounded, so the scale of activations is dynamic, a
row does not depend on the rows beside it (cuts of a prompt give what the whole gives), and the compiler sees constant
scales only. What Q and W are is the form's affair.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.surgery_pass import surgery_error

SMALLEST_MAGNITUDE = 2.0**-14
"""Rows whose values are all smaller are not brought up to one: half precision holds no much smaller divisor."""


class QuantizedForm(Protocol):
    """How rows and weights of one quantised type look in a graph.

    ``work`` is the element type of the products, ``opset`` the first that has the type's operators.
    """

    work: str
    opset: int

    def rounded(self, scope: Emitter, scaled: Tensor) -> Tensor:
        """Emit rows of [−1, 1] rounded to the type, in the work dtype again."""
        ...

    def weight(self, scope: Emitter, stored: Tensor) -> tuple[Tensor, Tensor | None]:
        """Emit the stored weight in the work dtype, and a factor a row of it (``[out]``) or None."""
        ...


class QuantizeProjections:
    """Rewrite every Gemm whose weight is one of ``names``."""

    name = "quantize projections"

    def __init__(self, names: Collection[str], form: QuantizedForm) -> None:
        self._names = frozenset(names)
        self._form = form

    def check_before(self, graph: gs.Graph) -> None:
        """Every quantised weight must be read by products only."""
        for node in graph.nodes:
            for tensor in node.inputs:
                if tensor.name in self._names and (node.op != "Gemm" or node.attrs.get("transB") != 1):
                    raise surgery_error(
                        self.name,
                        "a quantised weight is read by something else than a projection",
                        where=node.name,
                        found=node.op,
                        expected="Gemm with transB = 1",
                    )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; rows that feed several projections are quantised once."""
        graph.opset = max(graph.opset, self._form.opset)
        emitter = Emitter(graph)
        rows: dict[int, tuple[Tensor, Tensor]] = {}
        work = self._form.work
        for node in [node for node in graph.nodes if self._reads_quantized(node)]:
            x, stored = node.inputs
            scope = emitter.at_root(node.name)
            if id(x) not in rows:
                rows[id(x)] = self._quantized_rows(scope, x)
            rounded, magnitude = rows[id(x)]
            weight, factor = self._form.weight(scope, stored)
            product = scope.op("Gemm", [rounded, weight], "product", dtype=work, transB=1)
            if factor is not None:
                product = scope.op("Mul", [product, factor], "unscaled", dtype=work)
            # The node itself becomes the last one, so that its output keeps its name, type and readers.
            node.op, node.attrs, node.inputs = "Mul", {}, [product, magnitude]

    def check_after(self, graph: gs.Graph) -> None:
        """Quantised weights may be read by DequantizeLinear only."""
        for node in graph.nodes:
            if node.op != "DequantizeLinear" and any(tensor.name in self._names for tensor in node.inputs):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found=node.op, expected="DequantizeLinear"
                )

    def _reads_quantized(self, node: Any) -> bool:
        return node.op == "Gemm" and node.inputs[1].name in self._names

    def _quantized_rows(self, scope: Emitter, x: Tensor) -> tuple[Tensor, Tensor]:
        """Emit Q(x / m) in the work dtype, and m ``[rows, 1]``."""
        work = self._form.work
        smallest = scope.scalar(f"smallest_magnitude_{work}", SMALLEST_MAGNITUDE, work)
        largest = scope.op("ReduceMax", [scope.op("Abs", [x], "magnitudes"), scope.ints(-1)], "largest", keepdims=1)
        magnitude = scope.op("Max", [largest, smallest], "magnitude")
        return self._form.rounded(scope, scope.op("Div", [x, magnitude], "scaled")), magnitude
