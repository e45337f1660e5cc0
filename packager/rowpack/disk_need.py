"""Count the bytes that a build writes: the bundle's weights, and what lies beside it until the build has ended."""

from __future__ import annotations

from dataclasses import dataclass

from rowpack.engines.backend import Backend
from rowpack.gate import LayoutDecision
from rowpack.model_preparation import BuildRequest, PreparedModel
from rowpack.reference_model import reference_weights
from rowpack.units import format_bytes


@dataclass(frozen=True)
class DiskNeed:
    """Bytes of weights in the bundle, and of files beside it that are there at the same time at most."""

    bundle_bytes: int
    scratch_bytes: int

    @property
    def byte_count(self) -> int:
        """Bytes that must be free where the bundle is written."""
        return self.bundle_bytes + self.scratch_bytes

    def __str__(self) -> str:
        beside = f", and {format_bytes(self.scratch_bytes)} beside them for as long as it takes"
        return f"{format_bytes(self.bundle_bytes)} of weights to write{beside if self.scratch_bytes else ''}"


def disk_need(request: BuildRequest, prepared: PreparedModel, backend: Backend, decision: LayoutDecision) -> DiskNeed:
    """Return what the build writes; engines that hold their weights are as large as these."""
    weights_bytes = prepared.plan.section_bytes
    bundle_bytes, scratch_bytes = weights_bytes, 0
    if not backend.weights_in_bundle:
        # The compilers read the weights from a file. A second plan is stored whole, or compared with the first before.
        scratch_bytes = weights_bytes
        if decision.layout == "split" and request.plan_encoding == "raw":
            bundle_bytes += weights_bytes
        elif decision.layout == "split":
            scratch_bytes += weights_bytes
    reference = reference_weights(prepared) if request.verify else None
    if reference is not None:
        scratch_bytes += reference.section_bytes
    return DiskNeed(bundle_bytes, scratch_bytes)
