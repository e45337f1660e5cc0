"""Bundles of the trained checkpoints for OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rowpack import BuildRequest, build
from rowpack_loaders.decoder import Decoder


@dataclass(frozen=True)
class OnOpenVino:
    """A checkpoint, its split bundle for OpenVINO in float32, and the bundle's decoder on one thread."""

    checkpoint: Path
    path: Path
    decoder: Decoder


def build_for(checkpoint: Path, folder: Path, layout: str, backend: str = "openvino", precision: str = "fp32") -> Path:
    """Build ``checkpoint`` without the build's own smoke run."""
    output = folder / f"{checkpoint.name}-{backend}-{precision}-{layout}.bundle"
    request = BuildRequest(
        checkpoint, output, backend=backend, precision=precision, decoder_engine_layout=layout, verify=False
    )
    build(request)
    return output
