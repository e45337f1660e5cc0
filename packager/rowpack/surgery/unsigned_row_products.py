"""Let products in whole numbers run exactly where a processor has no instructions for them: by unsigned rows.

ONNX Runtime multiplies bytes by bytes exactly on every processor (``MatMulInteger``), slowly. The codes of rows are
moved up by 128, which is then their zero point, so that every sum is the same whole number. It serves to check graphs
on a build machine; no engine is built from it.
"""

from __future__ import annotations

import onnx

from rowpack.block_quantization import ROW_ZERO_POINT
from rowpack.graph.emitter import Emitter
from rowpack.graph.model import export_model, import_graph
from rowpack.surgery.rounded_row_products import OPERATOR


def with_unsigned_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with such products in place of those by signed rows; weights keep their bytes."""
    graph = import_graph(model)
    emitter = Emitter(graph)
    for node in [node for node in graph.nodes if node.op == OPERATOR]:
        weight, codes, _, steps, middle = node.inputs
        scope = emitter.at_root(node.name)
        moved = scope.op("Add", [scope.cast(codes, "float32", "wide"), scope.floats("up", ROW_ZERO_POINT)], "moved")
        unsigned = scope.cast(moved, "uint8", "unsigned")
        zero = scope.scalar("zero_of_rows", ROW_ZERO_POINT, "uint8")
        sums = scope.op("MatMulInteger", [weight, unsigned, middle, zero], "sums")
        node.op, node.domain, node.inputs = "Mul", None, [scope.cast(sums, "float32", "sums_float"), steps]
    return export_model(graph)
