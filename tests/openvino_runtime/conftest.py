"""The trained checkpoints on OpenVINO; every test here is marked ``openvino``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openvino_bundles import OnOpenVino, build_for

from rowpack_loaders import load

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "loaders"))

CHECKPOINTS = ("qwen_checkpoint", "rwkv_checkpoint")


@pytest.fixture(scope="session", params=CHECKPOINTS)
def on_openvino(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnOpenVino]:
    """Each trained checkpoint on OpenVINO."""
    checkpoint: Path = request.getfixturevalue(request.param)
    path = build_for(checkpoint, tmp_path_factory.mktemp("openvino"), "split")
    with load(path, threads=1) as decoder:
        yield OnOpenVino(checkpoint, path, decoder)
