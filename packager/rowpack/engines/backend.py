"""The protocol every backend follows.

A backend states what never changes (name, form of the graphs, copies of the weights); :meth:`Backend.open_builder`
looks at what is installed and returns a builder for one build, which hands each engine over as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from rowpack.engines.io_contract import EngineContract
from rowpack.engines.options import EngineOptions
from rowpack.gate import SplitVeto
from rowpack.surgery.graph_form import FusedChoice, GraphForm

if TYPE_CHECKING:
    import onnx

    from rowpack.graph.constants import ConstantBytes

OnProgress = Callable[[str], None]
"""Is told in a few words what a builder is at."""

Executed = Literal["engines", "graphs"]
"""What a smoke run on the build machine executes: the engines themselves, or the graphs they were compiled from."""


@dataclass(frozen=True)
class RowProfile:
    """The rows one launch may have; ``opt`` is what a compiling backend tunes for."""

    min: int
    opt: int
    max: int


DECODE_ROWS = RowProfile(1, 1, 1)


def prefill_rows_profile(prefill_rows: int) -> RowProfile:
    """Return the profile of a prefill engine for up to ``prefill_rows`` rows.

    It is tuned for half of them, between the last chunk of a prompt and all others, and never for fewer than 32.
    """
    return RowProfile(1, min(prefill_rows, max(32, prefill_rows // 2)), prefill_rows)


@dataclass(frozen=True)
class FileRange:
    """A range of a file, such as the weight section while engines are built."""

    path: Path
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True)
class EngineOrder:
    """What one engine is built from: the graph of ``role``, whose inputs and outputs were found to be ``contract``.

    ``weight_bytes`` are those of the tensors it uses, ``capacity_rows`` the most rows of its caches. ``serves_decode``
    marks a prefill graph whose session is to run the steps too.
    """

    role: str
    model: onnx.ModelProto
    contract: EngineContract
    rows: RowProfile
    weight_bytes: int
    capacity_rows: int
    serves_decode: bool = False


@dataclass(frozen=True)
class Measurement:
    """What building one engine took: time, and the memory of its process, estimated before and measured after."""

    seconds: float
    estimated_peak_bytes: int
    peak_resident_bytes: int
    engine_bytes: int

    def as_json(self) -> dict[str, object]:
        """Return the record of the build report."""
        return {
            "seconds": round(self.seconds, 3),
            "estimated_peak_bytes": self.estimated_peak_bytes,
            "peak_resident_bytes": self.peak_resident_bytes,
            "engine_bytes": self.engine_bytes,
        }


@dataclass(frozen=True)
class BuiltEngine:
    """One engine as it went into the bundle, with the facts that the manifest records.

    ``onnx`` is the graph it is or was compiled from. ``scratch_bytes`` is the part of ``context_bytes`` that a
    compiler plans as scratch; ``weights_shared`` says whether ``weight_bytes`` are one copy with the other engine's
    (None where the weights are part of the engine); ``private_weight_bytes`` of them each engine packs for itself.
    ``requires`` names what the engine's runtime must offer beyond standard operators. ``profile`` holds the shapes it
    compiled for: input → fewest, usual, most rows. ``serves_decode`` is the order's.
    """

    role: str
    section: str
    backend_version: str
    lowering: str
    target: dict[str, object]
    rows: RowProfile
    opset: int
    ir_version: int
    onnx: bytes
    onnx_sha256: str
    weight_bytes: int
    context_bytes: int | None
    contract: EngineContract
    requires: tuple[str, ...] = ()
    builder_flags: Mapping[str, str | int | bool | None] = field(default_factory=dict)
    scratch_bytes: int | None = None
    weights_shared: bool | None = None
    private_weight_bytes: int | None = None
    profile: Mapping[str, list[list[int]]] | None = None
    measurement: Measurement | None = None
    serves_decode: bool = False

    def as_json(self, backend: str) -> dict[str, object]:
        """Return the manifest's entry of the engine."""
        resident: dict[str, object] = {"weights": self.weight_bytes, "context": self.context_bytes}
        if self.scratch_bytes is not None:
            resident["scratch"] = self.scratch_bytes
        if self.weights_shared is not None:
            resident["shared"] = self.weights_shared
        if self.private_weight_bytes is not None:
            resident["private"] = self.private_weight_bytes
        entry: dict[str, object] = {
            "section": self.section,
            "backend": backend,
            "backend_version": self.backend_version,
            "requires": list(self.requires),
            "lowering": self.lowering,
            "target": self.target,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "rows": {"min": self.rows.min, "opt": self.rows.opt, "max": self.rows.max},
            "builder_flags": dict(self.builder_flags),
            "onnx_sha256": self.onnx_sha256,
            "resident_bytes": resident,
            "inputs": [tensor.as_json() for tensor in self.contract.inputs],
            "outputs": [tensor.as_json() for tensor in self.contract.outputs],
        }
        if self.serves_decode:
            entry["serves_decode"] = True
        if self.profile is not None:
            entry["profile"] = {
                name: dict(zip(("min", "opt", "max"), shapes, strict=True)) for name, shapes in self.profile.items()
            }
        return entry


class EngineBuild(Protocol):
    """One engine on its way into the bundle: its bytes as a stream, and what is known of it afterwards."""

    @property
    def section(self) -> str:
        """Name of its section."""
        ...

    @property
    def media_type(self) -> str:
        """Media type of its section."""
        ...

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the engine's bytes, each piece valid until the next; raises RowpackError when the build fails."""
        ...

    def result(self) -> BuiltEngine:
        """Return what was built, after the last piece."""
        ...


class EngineBuilder(Protocol):
    """What is installed, set up for one build."""

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """The compute capabilities that engines are compiled for; empty for engines that use no GPU."""
        ...

    def build_engine(self, order: EngineOrder, weights: FileRange | None, on_progress: OnProgress) -> EngineBuild:
        """Begin one engine; ``weights`` is the weight section for a builder that bakes weights in."""
        ...

    def check_written(self, engine: BuiltEngine, written: FileRange) -> None:
        """Load the engine as it was written and check its inputs and outputs, where this machine can."""
        ...


class Backend(Protocol):
    """One way to run the graphs."""

    name: str
    on_gpu: bool
    """Whether the engines run on a GPU, whose memory then bounds them; otherwise on the processor."""
    weights_in_bundle: bool
    """Whether the bundle carries a weight section; engines that hold their weights need none."""
    compiles_at_load: bool
    """Whether the runtime compiles the graphs of a bundle when it loads them."""
    max_prefill_rows: int
    """Most rows of a prefill engine: as many as were tried."""

    def check_precision(self, precision: str, quantization: str | None = None) -> None:
        """Raise RowpackError where the backend cannot run ``precision``, or projections in ``quantization``."""
        ...

    def graph_form(self, capacity_rows: int, precision: str) -> GraphForm:
        """Return the form of the graphs of ``precision`` for caches of ``capacity_rows`` rows."""
        ...

    def fused_operators(self, lowering: str, exported: onnx.ModelProto) -> FusedChoice:
        """Return the fused operators that the engines of ``exported`` use under ``--lowering``.

        Raises RowpackError where ``fused`` is asked for and the installed runtime cannot, or computes it wrong.
        """
        ...

    def shares_weights(self, precision: str) -> bool:
        """Tell whether both engines of a pair hold one copy of the weights in memory; a test measures it."""
        ...

    def weights_in_memory(self, constants: ConstantBytes) -> int:
        """Return the bytes that an engine with these constants holds of weights in memory."""
        ...

    def builder_memory_bytes(self, weight_bytes: int, node_count: int) -> int:
        """Return what building one engine takes of this machine's memory outside this process, at most.

        The engine has ``weight_bytes`` of weights and a graph of ``node_count`` nodes.
        """
        ...

    def split_veto(self, quantization: str | None = None) -> SplitVeto | None:
        """Return why a pair can never be built, or None."""
        ...

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> EngineBuilder:
        """Return a builder; raises RowpackError for options it cannot take and for what is not installed."""
        ...
