"""Make a graph run on the build machine: operators that ONNX Runtime's CPU provider lacks, by others that mean the
same.
"""

from __future__ import annotations


def runnable(graph: bytes, precision: str) -> bytes:
    """Return ``graph`` without bfloat16 arithmetic, E2M1 and products by signed rows; any other comes back as it is.

    Rows in E2M1 have sixteen values, and roundings of half precision in between would decide which; such graphs run in
    float32 throughout.
    """
    import onnx

    from rowpack.graph.model import serialize
    from rowpack.surgery.bfloat16_in_float32 import in_float32
    from rowpack.surgery.float4_in_float32 import has_float4, without_float4
    from rowpack.surgery.halves_in_float32 import in_float32_throughout
    from rowpack.surgery.unsigned_row_products import with_unsigned_rows
    from rowpack_loaders.row_products import has_row_products

    model = onnx.load_from_string(graph)
    if has_float4(model):
        return serialize(in_float32_throughout(without_float4(model)))
    if has_row_products(graph):
        return serialize(with_unsigned_rows(model))
    return serialize(in_float32(model)) if precision == "bf16" else graph


def reference(graph: bytes, precision: str) -> bytes:
    """Return the graph that engines are compared with: of bfloat16 the same in float32 throughout.

    Two ways of rounding each result to eight bits differ from each other by more than either from what is meant.
    """
    import onnx

    from rowpack.graph.model import serialize
    from rowpack.surgery.halves_in_float32 import in_float32_throughout

    if precision != "bf16":
        return runnable(graph, precision)
    return runnable(serialize(in_float32_throughout(onnx.load_from_string(graph))), "fp32")
