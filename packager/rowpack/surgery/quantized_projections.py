"""Write projections with eight-bit weights as a compiler recognises them: quantise and dequantise, explicitly.

    y_t = m_t · (Q(x_t / m_t) · Wᵀ),  m_t = the largest magnitude in row t,  W = scale · W8

Q rounds to E4M3 with one constant scale, which covers [−1, 1]: a row is brought there by its own largest magnitude, so
the scale of activations is dynamic, a row does not depend on the rows beside it (cuts of a prompt give what the whole
gives), and the compiler sees constants only. Weights have one scale a row of ``[out, in]``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.surgery_pass import surgery_error

LARGEST_FLOAT8 = 448.0

SMALLEST_MAGNITUDE = 2.0**-14
"""Rows whose values are all smaller are not brought up to one: half precision holds no much smaller divisor."""


class QuantizeProjections:
    """Rewrite every Gemm whose weight is one of ``names``; ``scales`` maps a weight's name to its scales."""

    name = "quantize projections"

    def __init__(self, names: Collection[str], scales: dict[str, Tensor], work: str) -> None:
        self._names = frozenset(names)
        self._scales = scales
        self._work = work

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
        emitter = Emitter(graph)
        rows: dict[int, tuple[Tensor, Tensor]] = {}
        for node in [node for node in graph.nodes if self._reads_quantized(node)]:
            x, weight = node.inputs
            scope = emitter.at_root(node.name)
            if id(x) not in rows:
                rows[id(x)] = self._quantized_rows(scope, x)
            quantised, magnitude = rows[id(x)]
            wide = scope.op(
                "DequantizeLinear",
                [weight, self._scales[weight.name]],
                "weight",
                dtype=self._work,
                shape=weight.shape,
                axis=0,
            )
            out = node.outputs[0]
            product = scope.op("Gemm", [quantised, wide], "product", dtype=self._work, transB=1)
            node.op, node.attrs, node.inputs = "Mul", {}, [product, magnitude]
            node.outputs = [out]

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
        """Emit Q(x / m) in the work dtype again, and m ``[rows, 1]``."""
        work = self._work
        smallest = scope.scalar(f"smallest_magnitude_{work}", SMALLEST_MAGNITUDE, work)
        scale = scope.scalar(f"float8_scale_{work}", 1 / LARGEST_FLOAT8, work)
        zero = scope.scalar("float8_zero", 0.0, "float8_e4m3fn")
        largest = scope.op("ReduceMax", [scope.op("Abs", [x], "magnitudes"), scope.ints(-1)], "largest", keepdims=1)
        magnitude = scope.op("Max", [largest, smallest], "magnitude")
        scaled = scope.op("Div", [x, magnitude], "scaled")
        rounded = scope.op("QuantizeLinear", [scaled, scale, zero], "quantized")
        return scope.op("DequantizeLinear", [rounded, scale, zero], "rounded", dtype=work), magnitude
