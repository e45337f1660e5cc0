"""Engines with four-bit projections, really compiled: TensorRT for RTX takes a free row count, so there is prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compiled_models import TRAINED_CHECKPOINTS, Preparation
from real_library import ParsedNetwork

from rowpack import BuildRequest, build
from rowpack.engines import find_backend
from rowpack.engines.options import EngineOptions
from rowpack_loaders import RowpackError, open_bundle, validate

pytestmark = pytest.mark.trt_rtx


@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_a_pair_with_four_bit_projections(tmp_path: Path, family: str) -> None:
    """Its graphs run before it is published, against the exported graph."""
    checkpoint = TRAINED_CHECKPOINTS[family]
    request = BuildRequest(
        checkpoint,
        tmp_path / "nvfp4.bundle",
        backend="trt_rtx",
        precision="fp16",
        quantization="nvfp4",
        target_memory_bytes=2**34,
    )
    report = build(request)
    assert validate(report.path).errors == []
    # Nothing but E2M1 is rounded in the smoke run, so chunks are exact; see tolerance() about the token loop.
    assert report.worst_relative_error["chunked"] <= 1e-3
    with open_bundle(report.path) as bundle:
        manifest: dict[str, Any] = bundle.manifest
    assert manifest["decoder_engine_layout"] == "split"
    assert manifest["model"]["quantization"] == "nvfp4"
    plain = Preparation(checkpoint, tmp_path, "fp16", 64).model.plan.tensor_bytes
    for engine in manifest["engines"].values():
        assert engine["target"]["sm"] == ["12.0", "12.1"]
        assert (engine["opset"], engine["ir_version"]) == (23, 11)
        assert engine["resident_bytes"]["weights"] < 0.6 * plain
    assert manifest["engines"]["prefill"]["profile"]["token_id"] == {"min": [1], "opt": [32], "max": [64]}


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_only_projections_pass_through_four_bits(tmp_path: Path, family: str, role: str) -> None:
    preparation = Preparation(TRAINED_CHECKPOINTS[family], tmp_path, "fp16", 64, "nvfp4")
    network = ParsedNetwork(preparation, role)
    trt = network.trt
    quantising = [layer.name for layer in network.layers() if layer.type == trt.LayerType.DYNAMIC_QUANTIZE]
    assert quantising
    kept = ("in_proj_ba", "conv", "delta_rule", "norm", "lm_head", "embed", "receptance", "wkv", "decay")
    assert [name for name in quantising if any(word in name for word in kept)] == []


def test_older_gpus_are_refused() -> None:
    with pytest.raises(RowpackError) as caught:
        find_backend("trt_rtx").open_builder(EngineOptions(("8.9", "12.0")), "nvfp4")
    assert (caught.value.code, caught.value.problem.found) == ("quantization_unsupported", "8.9")
