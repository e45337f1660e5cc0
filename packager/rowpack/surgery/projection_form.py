"""Choose the form of the projections' products for chunks: the weight as the left operand.

W · xᵀ with W ``[out, in]`` as it lies in the file runs 64 rows as fast as a prepacked weight, without a private
copy and without packing at load; a single row stays a Gemm with transB, which reads the same bytes. Where the runtime
packs weights because others need it, a Gemm's would be copied as well, so single rows take the other form too.
Measured figures: docs/benchmarks.md.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.surgery_pass import surgery_error


class WeightOnTheLeft:
    """Replace every Gemm over several rows by Transpose, MatMul, Transpose with the weight first.

    With ``single_rows`` those over one row are replaced as well. With ``beside``, the name of an operator, only graphs
    that have it are changed, and single rows too.
    """

    def __init__(self, *, beside: str | None = None, single_rows: bool = False) -> None:
        self.name = "weight on the left" if beside is None else f"weight on the left beside {beside}"
        self._beside = beside
        self._single_rows = single_rows

    def check_before(self, graph: gs.Graph) -> None:
        """Projections must be Gemm with transB and a constant weight of two dimensions."""
        for node in graph.nodes:
            if node.op == "Gemm" and (
                dict(node.attrs) != {"transB": 1}
                or len(node.inputs) != 2
                or not isinstance(node.inputs[1], gs.Constant)
            ):
                raise surgery_error(
                    self.name,
                    "a projection has another form",
                    where=node.name,
                    found=f"attributes {dict(node.attrs)}",
                    expected="transB = 1 and nothing else, a constant weight, no bias",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; rows that feed several projections are transposed once."""
        emitter = Emitter(graph)
        columns: dict[int, Tensor] = {}
        for node in self._meant(graph):
            x, weight = node.inputs
            scope = emitter.at_root(node.name)
            if id(x) not in columns:
                columns[id(x)] = scope.transpose(x, [1, 0], "columns")
            product = scope.op("MatMul", [weight, columns[id(x)]], "product")
            node.op, node.attrs, node.inputs = "Transpose", {"perm": [1, 0]}, [product]

    def check_after(self, graph: gs.Graph) -> None:
        """Only products of a single row may still be Gemm, if any."""
        for node in self._meant(graph):
            raise surgery_error(self.name, "a projection was missed", where=node.name, found="Gemm", expected="MatMul")

    def _meant(self, graph: gs.Graph) -> list[Any]:
        if self._beside is None and not self._single_rows:
            return [node for node in graph.nodes if _has_many_rows(node)]
        found = self._beside is None or any(node.op == self._beside for node in graph.nodes)
        return [node for node in graph.nodes if found and node.op == "Gemm"]


def _has_many_rows(node: Any) -> bool:
    """Tell whether ``node`` is a projection whose input is not declared to have one row."""
    if node.op != "Gemm":
        return False
    shape = node.inputs[0].shape
    return shape is None or shape[0] != 1
