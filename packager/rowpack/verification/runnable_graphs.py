"""Make a graph run on the build machine: operators that ONNX Runtime's CPU provider lacks, by others that mean the
same.
"""

from __future__ import annotations


def runnable(graph: bytes, precision: str) -> bytes:
    """Return ``graph`` without bfloat16 arithmetic and without E2M1; any other graph comes back as it is."""
    import onnx

    from rowpack.graph.model import serialize
    from rowpack.surgery.bfloat16_in_float32 import in_float32
    from rowpack.surgery.float4_in_float32 import has_float4, without_float4

    model = onnx.load_from_string(graph)
    changed = False
    if has_float4(model):
        model, changed = without_float4(model), True
    if precision == "bf16":
        model, changed = in_float32(model), True
    return serialize(model) if changed else graph
