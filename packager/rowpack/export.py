"""The exported ONNX model: one graph for any number of rows, mixers as ONNX functions, weights outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowpack.families import family_named
from rowpack.families.declaration import ModelDescription
from rowpack.quantization import quantized_form, quantized_tensors
from rowpack.weights import WEIGHTS_SECTION, WeightPlan

if TYPE_CHECKING:
    import onnx


def export_graph(model: ModelDescription, plan: WeightPlan, precision: str) -> onnx.ModelProto:
    """Return the exported model; its initializers refer to ``weights.safetensors`` at the plan's offsets.

    Quantised projections are part of the model: what engines compute is compared with them.
    """
    from rowpack.graph.dtypes import work_dtype
    from rowpack.graph.emitter import Emitter
    from rowpack.graph.model import export_model, new_graph
    from rowpack.onnx_ops import MIXERS, function
    from rowpack.surgery.quantized_projections import QuantizeProjections
    from rowpack.surgery.surgery_pass import run_passes

    graph = new_graph(f"{model.family}_exported")
    emitter = Emitter(graph)
    weights = {
        placed.spec.name: emitter.external_weight(
            placed.spec.name,
            placed.spec.dtype,
            placed.spec.shape,
            WEIGHTS_SECTION,
            placed.offset_bytes,
            placed.byte_count,
        )
        for placed in plan.tensors
    }
    family_named(model.family).emit(model, precision, emitter, weights)
    form = quantized_form(model, weights, work_dtype(precision))
    if form is not None:
        run_passes(graph, [QuantizeProjections(quantized_tensors(model), form)])
    called = {node.op for node in graph.nodes if node.domain}
    return export_model(graph, [function(name) for name in MIXERS if name in called])
