"""Builds of small models by the TensorRT backends, shared by the tests of this folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rowpack.checkpoint import open_checkpoint
from rowpack.engine_stage import engine_graphs, engine_orders
from rowpack.engines.backend import BuiltEngine, EngineOrder, FileRange
from rowpack.engines.options import NO_OPTIONS, EngineOptions
from rowpack.engines.tensorrt.backend import TensorRtBackend
from rowpack.export import export_graph
from rowpack.model_preparation import BuildRequest, PreparedModel, prepare_model
from rowpack.surgery import compiled_form
from rowpack.weights import stream_weights

CACHE_ROWS = 64

ROOT = Path(__file__).resolve().parents[2]
TRAINED_CHECKPOINTS = {
    "qwen3_5": ROOT / "packager" / "rowpack" / "demo_checkpoint",
    "rwkv": ROOT / "tests" / "data" / "rwkv4-kjv-3.7m",
}


@dataclass
class Preparation:
    """A checkpoint prepared for a TensorRT backend: orders by role, and its weights in a file."""

    checkpoint: Path
    folder: Path
    precision: str = "fp32"
    prefill_rows: int = 16
    quantization: str | None = None
    model: PreparedModel = field(init=False)
    weights: FileRange = field(init=False)

    def __post_init__(self) -> None:
        request = BuildRequest(
            self.checkpoint,
            self.folder / "unused.bundle",
            precision=self.precision,
            quantization=self.quantization,
            max_sequence_length=CACHE_ROWS,
            prefill_rows=self.prefill_rows,
        )
        path = self.folder / f"{self.precision}.weights"
        with open_checkpoint(self.checkpoint, allow_missing_tokenizer=True) as checkpoint:
            self.model = prepare_model(checkpoint, request)
            with path.open("wb") as stream:
                for piece in stream_weights(self.model.plan, checkpoint):
                    stream.write(piece)
        self.weights = FileRange(path, 0, path.stat().st_size)

    @cached_property
    def orders(self) -> dict[str, EngineOrder]:
        """What each engine is built from."""
        form = compiled_form(self.model.max_cache_length)
        exported = export_graph(self.model.model, self.model.plan, self.precision)
        graphs = engine_graphs(exported, self.prefill_rows, form, split=True)
        return {order.role: order for order in engine_orders(self.model, graphs, self.prefill_rows, form)}


def build_plan(
    backend: TensorRtBackend,
    preparation: Preparation,
    role: str = "decode",
    options: EngineOptions = NO_OPTIONS,
    order: EngineOrder | None = None,
    quantization: str | None = None,
) -> tuple[bytes, BuiltEngine, list[str]]:
    """Build one plan; return its bytes, the record, and what progress said."""
    told: list[str] = []
    builder = backend.open_builder(options, quantization)
    build = builder.build_engine(order or preparation.orders[role], preparation.weights, told.append)
    plan = b"".join(bytes(piece) for piece in build.pieces())
    return plan, build.result(), told


@dataclass(frozen=True)
class PretendedLibrary:
    """The pretended library of a test: the backend over it, and the folder its module lies in."""

    backend: TensorRtBackend
    folder: Path

    @staticmethod
    def asked_for(plan: bytes) -> dict[str, Any]:
        """Return what the library was asked for, from its plan."""
        record: dict[str, Any] = json.loads(plan.split(b"\n")[0])
        return record
