"""Exported graphs and built bundles of the trained checkpoints, made once."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from built_graphs import QWEN, RWKV, exported_graph

from rowpack import BuildRequest, build


@pytest.fixture(scope="session")
def qwen_exported() -> onnx.ModelProto:
    """The hybrid model's exported graph."""
    return exported_graph(QWEN)


@pytest.fixture(scope="session")
def rwkv_exported() -> onnx.ModelProto:
    """The recurrent model's exported graph."""
    return exported_graph(RWKV)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hybrid model as a split bundle, by its lowering; ``fused-single`` has one engine. Two carry a self-test."""
    folder = tmp_path_factory.mktemp("lowerings")
    made = {}
    for name in ("plain", "fused", "auto", "fused-single"):
        lowering, _, layout = name.partition("-")
        request = BuildRequest(
            QWEN,
            folder / f"{name}.bundle",
            lowering=lowering,
            decoder_engine_layout=layout or "split",
            max_sequence_length=512,
            target_memory_bytes=2**30,
            model_id="trained",
            verify=name in ("fused", "auto"),
        )
        made[name] = build(request).path
    return made
