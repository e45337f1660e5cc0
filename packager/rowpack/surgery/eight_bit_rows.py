"""Round what enters a product as MatMulNBits does, in the plain graph that such engines are compared with.

At accuracy level 4 each block of a row is rounded to eight bits with a scale of its own, its largest magnitude over
127. That is part of what a quantised model computes. Compared with rows that are not rounded, a deep model of random
weights is off by a fifth although every product is right, so that a wrong one would hardly be seen.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.surgery_pass import surgery_error

LARGEST_CODE = 127

SMALLEST_MAGNITUDE = 1e-30


class RoundRows:
    """Round the rows that enter Gemms; inputs of several products with blocks alike once.

    ``block_columns`` maps the names of those Gemms' weights to the columns of a block.
    """

    name = "round rows"

    def __init__(self, block_columns: Mapping[str, int]) -> None:
        self._block_columns = block_columns

    def check_before(self, graph: gs.Graph) -> None:
        """Every named weight must be read by one product or more."""
        read = {node.inputs[1].name for node in graph.nodes if node.op == "Gemm"}
        for name in sorted(self._block_columns.keys() - read):
            raise surgery_error(
                self.name, "a weight is read by no projection", where=name, found="no Gemm", expected="a Gemm"
            )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place."""
        emitter = Emitter(graph)
        rounded: dict[tuple[int, int], Tensor] = {}
        for node in [node for node in graph.nodes if node.op == "Gemm" and node.inputs[1].name in self._block_columns]:
            rows, weight = node.inputs
            block = self._block_columns[weight.name]
            if (id(rows), block) not in rounded:
                rounded[id(rows), block] = _rounded(emitter.at_root(node.name), rows, int(weight.shape[1]), block)
            node.inputs = [rounded[id(rows), block], weight]

    def check_after(self, graph: gs.Graph) -> None:
        """Named weights must multiply rounded rows."""
        for node in graph.nodes:
            if (
                node.op == "Gemm"
                and node.inputs[1].name in self._block_columns
                and node.inputs[0].inputs[0].op != "Reshape"
            ):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found="its rows", expected="rounded rows"
                )


def _rounded(scope: Emitter, rows: Tensor, columns: int, block: int) -> Tensor:
    """Emit round(x · 127 / m) · m / 127, where m is the largest magnitude of each block of x."""
    blocks = scope.reshape(rows, [-1, columns // block, block], "blocks")
    largest = scope.op("ReduceMax", [scope.op("Abs", [blocks], "magnitudes"), scope.ints(-1)], "largest", keepdims=1)
    # A block of zeros divides by something; denormal numbers are flushed to zero where engines run.
    divisor = scope.op("Max", [largest, scope.floats("smallest", SMALLEST_MAGNITUDE)], "divisor")
    scale = scope.op("Div", [divisor, scope.floats("largest_code", LARGEST_CODE)], "scale")
    codes = scope.op("Round", [scope.op("Div", [blocks, scale], "quotients")], "codes")
    return scope.reshape(
        scope.op("Mul", [codes, scale], "rounded_blocks"),
        [-1, columns],
        "rounded_rows",
        dtype="float32",
        out_shape=rows.shape,
    )
