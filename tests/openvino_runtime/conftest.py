"""Bundles of the trained checkpoints on OpenVINO; every test here is marked ``openvino``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "loaders"))

CHECKPOINTS = ("qwen_checkpoint", "rwkv_checkpoint")


@dataclass(frozen=True)
class OnOpenVino:
    """A checkpoint, its split bundle for OpenVINO in float32, and the bundle's decoder on one thread."""

    checkpoint: Path
    path: Path
    decoder: object


def build_for(checkpoint: Path, folder: Path, layout: str, backend: str = "openvino", precision: str = "fp32") -> Path:
    """Build ``checkpoint`` without the build's own smoke run."""
    from rowpack import BuildRequest, build

    output = folder / f"{checkpoint.name}-{backend}-{precision}-{layout}.bundle"
    request = BuildRequest(
        checkpoint, output, backend=backend, precision=precision, decoder_engine_layout=layout, verify=False
    )
    build(request)
    return output


@pytest.fixture(scope="session", params=CHECKPOINTS)
def on_openvino(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnOpenVino]:
    """Each trained checkpoint on OpenVINO."""
    from rowpack_loaders import load

    checkpoint: Path = request.getfixturevalue(request.param)
    path = build_for(checkpoint, tmp_path_factory.mktemp("openvino"), "split")
    with load(path, threads=1) as decoder:
        yield OnOpenVino(checkpoint, path, decoder)
