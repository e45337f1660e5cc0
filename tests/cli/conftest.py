"""A bundle whose manifest is complete and whose engines are no engines: what ``inspect`` needs and no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowpack.bundle.writer import BundleWriter

WEIGHT_BYTES = 300_000
ENGINE_BYTES = 5_000
PREFILL_BYTES = 7_000

MakeBundle = Callable[..., Path]


def make_manifest(layout: str) -> dict[str, Any]:
    """Return a manifest of a made-up model with one Gated DeltaNet layer and one attention layer."""
    target = {"os": ["any"], "arch": ["any"], "cpu_features": [], "sm": [], "minimum_driver": None}

    def engine(section: str, rows: dict[str, int]) -> dict[str, Any]:
        row_count: int | str = "rows" if rows["max"] > 1 else 1
        return {
            "section": section,
            "backend": "ort",
            "backend_version": "1.32.0",
            "target": target,
            "rows": rows,
            "inputs": [{"name": "token_id", "dtype": "int32", "shape": [row_count], "role": "token_id"}],
            "outputs": [{"name": "logits", "dtype": "float32", "shape": [1, 2048], "role": "logits"}],
        }

    engines = {"decode": engine("engine.onnx", {"min": 1, "opt": 1, "max": 1})}
    if layout == "split":
        engines["prefill"] = engine("prefill.onnx", {"min": 1, "opt": 32, "max": 64})
    return {
        "schema_version": "1.0",
        "required_features": [],
        "producer": {"name": "rowpack", "version": "0.1.0"},
        "model": {
            "id": "made-up",
            "revision": "abc123",
            "family": "qwen3_5",
            "architecture": "Qwen3_5ForCausalLM",
            "parameter_count": 75_000,
            "precision": "fp32",
            "quantization": None,
            "inputs": [{"file": "config.json", "length": 12, "sha256": "0" * 64}],
        },
        "decoder_engine_layout": layout,
        "layout_decision": {
            "requested": "auto",
            "layout": layout,
            "reason": "fits" if layout == "split" else "capacity_unknown",
            "override": False,
            "copies": 2,
            "weight_bytes": WEIGHT_BYTES,
            "state_bytes": 8192,
            "key_value_bytes_per_token": 1024,
            "capacity_bytes": 1_000_000 if layout == "split" else None,
            "capacity_source": "target_memory" if layout == "split" else "unknown",
            "budget_percent": 80,
            "budget_bytes": 800_000 if layout == "split" else None,
        },
        "engines": engines,
        "states": [
            state("conv", 0, "conv_state_0", [512, 4], "replace"),
            state("key", 3, "cache_k_0", [4096, 128], "append_rows"),
        ],
        "limits": {"max_cache_length": 4096, "prefill_rows": 64, "max_position_embeddings": 4096},
        "tokens": {"vocab_size": 2048, "bos": None, "pad": None, "eos": [{"id": 2, "sources": ["config.json"]}]},
        "tokenizer": {"sections": [], "chat_template_section": None, "missing": True},
    }


def state(role: str, layer: int, name: str, shape: list[int], update: str) -> dict[str, Any]:
    """Return one entry of the state table."""
    return {
        "role": role,
        "layer": layer,
        "input": name,
        "output": f"present_{name}",
        "dtype": "float32",
        "shape": shape,
        "layout": "row_per_position",
        "initial_value": 0.0,
        "update": update,
        "rewindable": update == "append_rows",
    }


@pytest.fixture
def make_bundle(tmp_path: Path) -> MakeBundle:
    """Write the made-up bundle; ``change`` may alter its manifest first."""

    def make(layout: str = "split", change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Path:
        manifest = make_manifest(layout)
        change(manifest)
        path = tmp_path / f"{layout}.bundle"
        with BundleWriter(path, family="qwen3_5", backend="ort") as writer:
            writer.add_section("engine.onnx", bytes([1]) * ENGINE_BYTES, media_type="application/onnx")
            if layout == "split":
                writer.add_section("prefill.onnx", bytes([2]) * PREFILL_BYTES, media_type="application/onnx")
            writer.add_section("weights.safetensors", bytes([3]) * WEIGHT_BYTES, media_type="application/safetensors")
            writer.finish(manifest, {})
        return path

    return make
