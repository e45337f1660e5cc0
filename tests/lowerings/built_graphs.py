"""Exported graphs of the two trained checkpoints, without their weights."""

from __future__ import annotations

from pathlib import Path

import onnx

from rowpack.checkpoint import open_checkpoint
from rowpack.export import export_graph
from rowpack.model_preparation import BuildRequest, prepare_model

ROOT = Path(__file__).resolve().parents[2]
QWEN = ROOT / "packager" / "rowpack" / "demo_checkpoint"
RWKV = ROOT / "tests" / "data" / "rwkv4-kjv-3.7m"


def exported_graph(folder: Path) -> onnx.ModelProto:
    """Return the graph with its mixers as calls."""
    with open_checkpoint(folder, allow_missing_tokenizer=True) as checkpoint:
        prepared = prepare_model(checkpoint, BuildRequest(folder, Path("unused.bundle")))
    return export_graph(prepared.model, prepared.plan, "fp32")
