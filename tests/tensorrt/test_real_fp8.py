"""Engines with eight-bit projections, really compiled: what is eight bits in them, and for which GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_models import TRAINED_CHECKPOINTS, Preparation, build_plan
from real_library import ParsedNetwork

from rowpack import BuildRequest, build
from rowpack.engines import find_backend
from rowpack.engines.options import NO_OPTIONS, EngineOptions
from rowpack.quantization import quantized_tensors, scale_name
from rowpack_loaders import RowpackError, open_bundle, validate

pytestmark = pytest.mark.trt_rtx


@dataclass(frozen=True)
class Quantised:
    """A bundle, and the preparation its engines were made from."""

    manifest: dict[str, Any]
    plans: dict[str, bytes]
    preparation: Preparation
    worst_error: dict[str, float]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Quantised]:
    """Return a function family → the split bundle in fp16 with fp8 projections, built once."""
    made: dict[str, Quantised] = {}

    def make(family: str) -> Quantised:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            checkpoint = TRAINED_CHECKPOINTS[family]
            request = BuildRequest(
                checkpoint,
                folder / "fp8.bundle",
                backend="trt_rtx",
                precision="fp16",
                quantization="fp8",
                decoder_engine_layout="split",
                max_sequence_length=64,
            )
            report = build(request)
            assert validate(report.path).errors == []
            with open_bundle(report.path) as bundle:
                plans = {
                    role: bundle.read_section(name, limit_bytes=2**28)
                    for role, name in (("decode", "engine.plan"),)
                    if name in bundle.sections
                }
                preparation = Preparation(checkpoint, folder, "fp16", 64, "fp8")
                made[family] = Quantised(bundle.manifest, plans, preparation, report.worst_relative_error)
        return made[family]

    return make


@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_a_bundle_with_eight_bit_projections(quantised: Any, family: str) -> None:
    bundle: Quantised = quantised(family)
    model = bundle.manifest["model"]
    assert (model["precision"], model["quantization"]) == ("fp16", "fp8")
    assert list(bundle.manifest["engines"]) == ["decode", "prefill"]
    for engine in bundle.manifest["engines"].values():
        assert engine["target"]["sm"] == ["8.9", "12.0", "12.1"]
    assert max(bundle.worst_error.values()) <= 0.15


@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_eight_bit_weights_lie_in_the_plan(quantised: Any, family: str) -> None:
    """A compiler that folded the dequantisation would store half precision, and nothing would be won."""
    bundle: Quantised = quantised(family)
    section = bundle.preparation.weights.path.read_bytes()
    placed = {weight.spec.name: weight for weight in bundle.preparation.model.plan.tensors}
    names = quantized_tensors(bundle.preparation.model.model)
    found = [
        name
        for name in names
        if bundle.plans["decode"].find(
            section[placed[name].offset_bytes : placed[name].offset_bytes + placed[name].byte_count]
        )
        >= 0
    ]
    total, there = (sum(placed[name].byte_count for name in chosen) for chosen in (names, found))
    assert there >= 0.5 * total
    weights = bundle.manifest["engines"]["decode"]["resident_bytes"]["weights"]
    assert weights < 1.05 * bundle.preparation.model.plan.tensor_bytes


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_only_projections_pass_through_eight_bits(quantised: Any, family: str, role: str) -> None:
    network = ParsedNetwork(quantised(family).preparation, role)
    trt = network.trt
    quantising = [layer.name for layer in network.layers() if layer.type == trt.LayerType.QUANTIZE]
    assert quantising
    kept = ("in_proj_ba", "conv", "delta_rule", "norm", "lm_head", "embed", "receptance", "wkv", "decay")
    assert [name for name in quantising if any(word in name for word in kept)] == []
    eight_bits = (trt.DataType.FP8,)
    for layer in network.layers():
        if layer.type not in (trt.LayerType.QUANTIZE, trt.LayerType.CONSTANT):
            types = [layer.get_output(index).dtype for index in range(layer.num_outputs)]
            assert not set(types) & set(eight_bits), layer.name


def test_gpus_without_eight_bit_products_are_refused() -> None:
    with pytest.raises(RowpackError) as caught:
        find_backend("trt_rtx").open_builder(EngineOptions(("8.6", "8.9")), "fp8")
    assert (caught.value.code, caught.value.problem.found) == ("quantization_unsupported", "8.6")


def test_scales_are_stored_beside_their_values(quantised: Any) -> None:
    preparation = quantised("rwkv").preparation
    placed = {weight.spec.name: weight for weight in preparation.model.plan.tensors}
    section = preparation.weights.path.read_bytes()
    for name in quantized_tensors(preparation.model.model):
        weight = placed[scale_name(name)]
        scales = np.frombuffer(section, np.float16, weight.spec.shape[0], weight.offset_bytes)
        assert (scales > 0).all()


def test_bfloat16_builds_too(tmp_path: Path) -> None:
    preparation = Preparation(TRAINED_CHECKPOINTS["rwkv"], tmp_path, "bf16", 64, "fp8")
    backend: Any = find_backend("trt_rtx")
    plan, engine, _ = build_plan(backend, preparation, "prefill", NO_OPTIONS, quantization="fp8")
    assert plan
    assert engine.weight_bytes < 1.2 * preparation.model.plan.tensor_bytes
