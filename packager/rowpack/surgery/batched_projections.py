"""Write a projection that is split into equal halves as one batched product with a weight ``[2, out, in]``.

A compiler stores the halves of gate and up interleaved by rows when it sees them as one matrix that is split, and in
another order in each engine. As a batch the weight is stored as it lies in the checkpoint, in the decode plan and in
the prefill plan alike.
"""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter
from rowpack.surgery.surgery_pass import surgery_error

_HALVES = 2


class BatchHalvedProjections:
    """Replace Gemm (transB) and the Split of its columns into two equal parts by one batched MatMul."""

    name = "batch halved projections"

    def check_before(self, graph: gs.Graph) -> None:
        """The sizes of a projection's Split must be constant."""
        for node in graph.nodes:
            if _splits_a_projection(node) and not isinstance(node.inputs[1], gs.Constant):
                raise surgery_error(
                    self.name,
                    "the sizes of a split are computed",
                    where=node.name,
                    found=node.inputs[1].name,
                    expected="a constant",
                )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite in place; the halves keep their names."""
        emitter = Emitter(graph)
        replaced: set[int] = set()
        for split in [node for node in graph.nodes if _splits_in_half(node)]:
            gemm = split.inputs[0].inputs[0]
            x, weight = gemm.inputs
            rows, columns = (int(extent) for extent in weight.shape)
            scope = emitter.at_root(gemm.name)
            halves = scope.reshape(weight, [_HALVES, rows // _HALVES, columns], "halves")
            product = scope.op("MatMul", [x, scope.transpose(halves, [0, 2, 1], "halves_transposed")], "product")
            parts = scope.split(product, [1] * _HALVES, 0, "product_split", ["first", "second"])
            for half, part in zip(list(split.outputs), parts, strict=True):
                split.outputs.remove(half)
                graph.nodes.append(
                    gs.Node("Squeeze", f"{half.name}.rows", inputs=[part, emitter.ints(0)], outputs=[half])
                )
            split.inputs.clear()
            gemm.inputs.clear()
            gemm.outputs.clear()
            replaced |= {id(split), id(gemm)}
        graph.nodes = [node for node in graph.nodes if id(node) not in replaced]

    def check_after(self, graph: gs.Graph) -> None:
        """No projection may be split in half any more."""
        for node in graph.nodes:
            if _splits_in_half(node):
                raise surgery_error(
                    self.name, "a projection was missed", where=node.name, found="Split", expected="a batched product"
                )


def _splits_a_projection(node: Any) -> bool:
    """Tell whether ``node`` splits the columns of a Gemm that nothing else reads."""
    if node.op != "Split" or node.attrs.get("axis") != 1 or len(node.outputs) != _HALVES:
        return False
    product = node.inputs[0]
    return len(product.outputs) == 1 and bool(product.inputs) and product.inputs[0].op == "Gemm"


def _splits_in_half(node: Any) -> bool:
    if not _splits_a_projection(node):
        return False
    sizes = node.inputs[1].values
    return bool(sizes[0] == sizes[1])
