"""The model that engines are compared with: as exported, and for weights in blocks with what the blocks stand for.

The reference of weight-only quantization is the plain float32 model of the dequantised weights, with the rows that
enter their products rounded as the operator defines. The weights are written beside the bundle while it is verified,
and mapped like any weights, so that the memory of a build stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rowpack.checkpoint import Checkpoint
from rowpack.engine_stage import counted, scratch_file
from rowpack.engines.backend import FileRange
from rowpack.export import export_graph
from rowpack.integer_quantization import dequantized, quantized_names, rounded_blocks
from rowpack.model_preparation import PreparedModel
from rowpack.progress import Progress
from rowpack.weights import WeightPlan, plan_weights, stream_weights
from rowpack_loaders.mapped_section import MappedSection

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import onnx


@dataclass(frozen=True)
class ReferenceModel:
    """A graph, and the file range of its weights."""

    graph: bytes
    weights: FileRange

    def mapped_weights(self, engines: FileRange, mapped: MappedSection) -> AbstractContextManager[MappedSection]:
        """Return the weights mapped: ``mapped`` where they are those of the ``engines``."""
        from rowpack.verification.resident_pages import mapped_section

        if self.weights == engines:
            return nullcontext(mapped)
        return mapped_section(self.weights.path, self.weights.offset_bytes, self.weights.length_bytes)


def reference_weights(prepared: PreparedModel) -> WeightPlan | None:
    """Return the plan of the weights that the reference needs for itself; None where it has those of the bundle."""
    if not any(quantized_names(prepared.model)):
        return None
    return plan_weights(dequantized(prepared.model).weights)


@contextmanager
def reference_model(
    prepared: PreparedModel,
    exported: onnx.ModelProto,
    weights: FileRange,
    checkpoint: Checkpoint,
    target: Path,
    progress: Progress,
) -> Iterator[ReferenceModel]:
    """Give the model to compare engines with; a file that it needs lies beside ``target`` and is gone afterwards.

    Raises RowpackError as the bundle writer does.
    """
    from rowpack.graph.model import serialize

    plan = reference_weights(prepared)
    if plan is None:
        yield ReferenceModel(serialize(exported), weights)
        return
    with ExitStack() as kept:
        with progress.stage("reference", "weights that the quantised ones stand for", plan.section_bytes) as stage:
            pieces = counted(stream_weights(plan, checkpoint), stage)
            written = kept.enter_context(scratch_file(target, pieces, plan.section_bytes, "reference"))
        model = dequantized(prepared.model)
        graph = export_graph(model, plan, prepared.precision, eight_bit_rows=rounded_blocks(prepared.model))
        yield ReferenceModel(serialize(graph), written)
