"""The protocol every backend follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rowpack.engines.io_contract import EngineContract
from rowpack.gate import Capacity, SplitVeto

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class RowProfile:
    """The rows one launch may have; ``opt`` is what a compiling backend tunes for."""

    min: int
    opt: int
    max: int


DECODE_ROWS = RowProfile(1, 1, 1)


def prefill_rows_profile(prefill_rows: int) -> RowProfile:
    """Return the profile of a prefill engine for up to ``prefill_rows`` rows."""
    return RowProfile(1, min(32, prefill_rows), prefill_rows)


@dataclass(frozen=True)
class BuiltEngine:
    """One engine as it goes into the bundle, with the facts that the manifest records."""

    role: str
    section: str
    media_type: str
    payload: bytes
    backend_version: str
    lowering: str
    target: dict[str, object]
    rows: RowProfile
    opset: int
    ir_version: int
    onnx_sha256: str
    weight_bytes: int
    context_bytes: int | None
    contract: EngineContract

    def as_json(self, backend: str) -> dict[str, object]:
        """Return the manifest's entry of the engine."""
        return {
            "section": self.section,
            "backend": backend,
            "backend_version": self.backend_version,
            "requires": [],
            "lowering": self.lowering,
            "target": self.target,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "rows": {"min": self.rows.min, "opt": self.rows.opt, "max": self.rows.max},
            "builder_flags": {},
            "onnx_sha256": self.onnx_sha256,
            "resident_bytes": {"weights": self.weight_bytes, "context": self.context_bytes},
            "inputs": [tensor.as_json() for tensor in self.contract.inputs],
            "outputs": [tensor.as_json() for tensor in self.contract.outputs],
        }


class Backend(Protocol):
    """One way to run the graphs."""

    name: str
    weight_copies: int
    """Copies of the weights that a split pair holds in memory: 1 only where both engines really share them."""

    def check_precision(self, precision: str) -> None:
        """Raise RowpackError ``precision_unsupported`` where the backend cannot run ``precision``."""
        ...

    def capacity(self, target_memory_bytes: int | None) -> Capacity:
        """Return the memory of the device the bundle is for, and where the figure comes from."""
        ...

    def split_veto(self) -> SplitVeto | None:
        """Return why a pair can never be built, or None."""
        ...

    def build_engine(
        self, role: str, model: onnx.ModelProto, contract: EngineContract, rows: RowProfile, weight_bytes: int
    ) -> BuiltEngine:
        """Build the engine ``role`` (``decode`` or ``prefill``) from its graph, whose checked I/O is ``contract``."""
        ...
