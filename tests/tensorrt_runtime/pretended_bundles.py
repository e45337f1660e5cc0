"""A model twice: as a bundle for ONNX Runtime, and as plans for the executing library, from the same checkpoint."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from executing_library import CompiledGraph, ExecutingLibrary
from recording_device import RecordingDevice

from rowpack import BuildRequest, build
from rowpack.bundle import BundleWriter
from rowpack.bundle.shared_extents import find_shared_extents, stored_pieces
from rowpack.checkpoint import open_checkpoint
from rowpack.engine_stage import engine_graphs, engine_orders
from rowpack.engines.backend import EngineOrder
from rowpack.engines.tensorrt.network_contract import row_profile
from rowpack.export import export_graph
from rowpack.graph.model import serialize
from rowpack.model_preparation import prepare_model
from rowpack.surgery import compiled_form
from rowpack.weights import WEIGHTS_SECTION, stream_weights
from rowpack_loaders import open_bundle
from rowpack_loaders.model_description import ModelDescription, describe_model
from rowpack_loaders.runtimes.tensorrt.interfaces import PlanTensor
from rowpack_loaders.section_content import ExtentsRecord, RawContent

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = {
    "qwen3_5": ROOT / "packager" / "rowpack" / "demo_checkpoint",
    "rwkv": ROOT / "tests" / "data" / "rwkv4-kjv-3.7m",
}
CACHE_ROWS = 48
PREFILL_ROWS = 16
TARGET = {"os": ["linux"], "arch": ["x86_64"], "cpu_features": [], "sm": ["8.6", "8.9"], "minimum_driver": None}
SECTIONS = {"decode": "engine.plan", "prefill": "prefill.plan"}


@dataclass(frozen=True)
class PretendedModel:
    """Both forms of one model."""

    onnx_bundle: Path
    manifest: dict[str, Any]
    graphs: dict[str, CompiledGraph]

    @property
    def model(self) -> ModelDescription:
        """The description of the plans."""
        return describe_model(copy.deepcopy(self.manifest))

    def parts(self, total_bytes: int = 2**30) -> tuple[RecordingDevice, ExecutingLibrary]:
        """Return a device and a library over it."""
        device = RecordingDevice(total_bytes)
        device.activate()
        return device, ExecutingLibrary(device, self.graphs)


def plan_content(role: str) -> RawContent:
    """Return the made-up plan of a role."""
    data = plan_bytes(role)

    def read(buffer: memoryview, offset_bytes: int) -> None:
        buffer[:] = data[offset_bytes : offset_bytes + len(buffer)]

    return RawContent(len(data), read, lambda: memoryview(data))


def plan_bytes(role: str) -> bytes:
    """Return the bytes of a made-up plan: its role, and some that both plans share."""
    return f"{role} plan ".encode().ljust(16) + bytes(range(256)) * 40


def make_model(checkpoint: Path, folder: Path, precision: str = "fp32") -> PretendedModel:
    """Build both forms into ``folder``."""
    request = BuildRequest(
        checkpoint,
        folder / "onnx.bundle",
        precision=precision,
        max_sequence_length=CACHE_ROWS,
        prefill_rows=PREFILL_ROWS,
        decoder_engine_layout="split",
        verify=False,
        allow_missing_tokenizer=True,
    )
    build(request)
    with open_bundle(request.output) as bundle:
        manifest: dict[str, Any] = copy.deepcopy(bundle.manifest)
    with open_checkpoint(checkpoint, allow_missing_tokenizer=True) as opened:
        prepared = prepare_model(opened, request)
        with (folder / WEIGHTS_SECTION).open("wb") as stream:
            for piece in stream_weights(prepared.plan, opened):
                stream.write(piece)
    form = compiled_form(CACHE_ROWS)
    exported = export_graph(prepared.model, prepared.plan, precision)
    graphs = engine_graphs(exported, PREFILL_ROWS, form, split=True)
    compiled = {}
    for order in engine_orders(prepared, graphs, PREFILL_ROWS, form):
        path = folder / f"{order.role}.onnx"
        path.write_bytes(serialize(order.model))
        compiled[order.role] = CompiledGraph(path, plan_tensors(order))
        manifest["engines"][order.role] |= {
            "section": SECTIONS[order.role],
            "backend": "trt_rtx",
            "backend_version": "1.7.1.116",
            "inputs": [tensor.as_json() for tensor in order.contract.inputs],
            "outputs": [tensor.as_json() for tensor in order.contract.outputs],
            "resident_bytes": {"weights": 1000, "context": 0},
            "target": TARGET,
        }
    manifest["weights"] = None
    return PretendedModel(request.output, manifest, compiled)


def plan_tensors(order: EngineOrder) -> tuple[PlanTensor, ...]:
    """Return the tensors of an engine as the library tells them."""
    profile = row_profile(order.contract, order.rows, CACHE_ROWS)
    tensors = []
    for is_input, described in ((True, order.contract.inputs), (False, order.contract.outputs)):
        for tensor in described:
            shape = tuple(-1 if isinstance(extent, str) else extent for extent in tensor.shape)
            shapes = profile.get(tensor.name)
            extents = (tuple(shapes[0]), tuple(shapes[2])) if shapes else None
            tensors.append(PlanTensor(tensor.name, is_input, tensor.dtype, shape, extents))
    return tuple(tensors)


def write_plan_bundle(model: PretendedModel, path: Path, *, shared: bool = False) -> Path:
    """Write a bundle of made-up plans with the model's manifest; ``shared`` stores the second as extents."""
    manifest = {key: value for key, value in model.manifest.items() if key not in ("sections", "content_digest")}
    manifest |= {"self_test": None}
    media_type = "application/x-tensorrt-plan"
    with (
        open_bundle(model.onnx_bundle) as source,
        BundleWriter(path, family=source.family, backend="trt_rtx") as writer,
    ):
        for name in source.sections:
            if name.endswith(".json") and name != "manifest.json":
                writer.add_section(name, source.read_section(name), media_type="application/json")
        writer.add_section("engine.plan", plan_bytes("decode"), media_type=media_type)
        content = np.frombuffer(plan_bytes("prefill"), np.uint8)
        if shared:
            extents = find_shared_extents(content, np.frombuffer(plan_bytes("decode"), np.uint8))
            record = ExtentsRecord("engine.plan", len(content), hashlib.sha256(content.data).hexdigest())
            pieces = stored_pieces(extents, content)
            writer.add_section("prefill.plan", pieces, media_type=media_type, encoding="extents", extents=record)
        else:
            writer.add_section("prefill.plan", content.data, media_type=media_type)
        writer.finish(manifest, {})
    return path
