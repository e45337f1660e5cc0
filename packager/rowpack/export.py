"""The exported ONNX model: one graph for any number of rows, mixers as ONNX functions, weights outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rowpack.families import family_named
from rowpack.families.declaration import ModelDescription
from rowpack.integer_quantization import half_precision_tables, quantized_names, scale_name, zero_point_name
from rowpack.quantization import quantized_form, quantized_tensors
from rowpack.weights import WEIGHTS_SECTION, WeightPlan

if TYPE_CHECKING:
    import onnx


def export_graph(
    model: ModelDescription, plan: WeightPlan, precision: str, *, eight_bit_rows: Mapping[str, int] | None = None
) -> onnx.ModelProto:
    """Return the exported model; its initializers refer to ``weights.safetensors`` at the plan's offsets.

    Quantised projections are part of the model: what engines compute is compared with them. ``eight_bit_rows`` names
    float32 weights whose products round the rows that enter them, in blocks of so many columns.
    """
    from rowpack.graph.dtypes import work_dtype
    from rowpack.graph.emitter import Emitter
    from rowpack.graph.model import export_model, new_graph
    from rowpack.onnx_ops import MIXERS, function
    from rowpack.surgery.block_projections import DequantizeBlocks, WidenLookups
    from rowpack.surgery.eight_bit_rows import RoundRows
    from rowpack.surgery.quantized_projections import QuantizeProjections
    from rowpack.surgery.rounded_row_products import row_zero_points
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
    in_blocks = list(quantized_names(model))
    if in_blocks:
        scales = {name: weights[scale_name(name)] for name in in_blocks}
        zero_points = {
            name: weights.get(zero_point_name(name)) or row_zero_points(emitter, scales[name]) for name in in_blocks
        }
        run_passes(graph, [DequantizeBlocks(scales, zero_points)])
    if eight_bit_rows:
        run_passes(graph, [RoundRows(eight_bit_rows)])
    tables = half_precision_tables(model, work_dtype(precision))
    if tables:
        run_passes(graph, [WidenLookups(tables)])
    called = {node.op for node in graph.nodes if node.domain}
    return export_model(graph, [function(name) for name in MIXERS if name in called])
