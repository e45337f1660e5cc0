"""Bundles for a processor and for GPUs; the plans in them are none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "container"))

MakeBundle = Callable[..., Path]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def onnx_bundle(tmp_path: Path) -> MakeBundle:
    """Write a bundle for ONNX Runtime; ``change`` may alter its manifest first."""

    def make(change: Change = lambda manifest: None) -> Path:
        from synthetic_bundles import BundleParts

        parts = BundleParts()
        change(parts.manifest)
        parts.write(tmp_path / "x.bundle")
        return tmp_path / "x.bundle"

    return make


@pytest.fixture
def plan_bundle(tmp_path: Path) -> MakeBundle:
    """Write a split bundle of made-up plans for RTX GPUs 8.6, 8.9 and 12.0."""

    def make(change: Change = lambda manifest: None, backend: str = "trt_rtx") -> Path:
        from synthetic_bundles import BundleParts

        parts = BundleParts(
            backend=backend,
            sections={"engine.plan": b"made-up decode plan " * 10, "prefill.plan": b"made-up prefill plan " * 10},
            without={"engine.onnx", "prefill.onnx", "weights.safetensors"},
        )
        parts.manifest["weights"] = None
        parts.manifest["layout_decision"]["copies"] = 2
        for role, section in (("decode", "engine.plan"), ("prefill", "prefill.plan")):
            parts.manifest["engines"][role] |= {
                "section": section,
                "backend": backend,
                "backend_version": "1.7.1.116" if backend == "trt_rtx" else "11.4.0.12",
                "resident_bytes": {"weights": 1000, "context": 100},
                "target": {
                    "os": ["linux", "windows"],
                    "arch": ["x86_64"],
                    "cpu_features": [],
                    "sm": ["8.6", "8.9", "12.0"] if backend == "trt_rtx" else ["8.9"],
                    "minimum_driver": None,
                },
                "builder_flags": {"hardware_compatibility": "none", "version_compatible": False},
            }
        change(parts.manifest)
        parts.write(tmp_path / "plans.bundle")
        return tmp_path / "plans.bundle"

    return make
