"""Whole bundles from TensorRT for RTX for both families, every precision and layout, built without a GPU."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from compiled_models import TRAINED_CHECKPOINTS

from rowpack import BuildReport, BuildRequest, build
from rowpack_loaders import open_bundle, validate
from rowpack_loaders.compatibility import Target, check_bundle

pytestmark = pytest.mark.trt_rtx

WORK_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
BUILDS = [(family, precision) for family in TRAINED_CHECKPOINTS for precision in WORK_DTYPES]


@dataclass(frozen=True)
class Built:
    """A bundle, what its build reported, and its manifest."""

    report: BuildReport
    manifest: dict[str, Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Built]:
    """Return a function (family, precision, layout) → the bundle, built once."""
    folder = tmp_path_factory.mktemp("bundles")
    made: dict[tuple[str, str, str], Built] = {}

    def make(family: str, precision: str, layout: Any) -> Built:
        key = (family, precision, layout)
        if key not in made:
            path = folder / f"{family}-{precision}-{layout}.bundle"
            report = build(
                BuildRequest(
                    TRAINED_CHECKPOINTS[family],
                    path,
                    backend="trt_rtx",
                    precision=precision,
                    decoder_engine_layout=layout,
                    max_sequence_length=256,
                )
            )
            with open_bundle(path) as bundle:
                made[key] = Built(report, bundle.manifest)
        return made[key]

    return make


def target_of(compute_capability: str, system: str, version: str) -> Target:
    return Target(
        os=system,
        arch=platform.machine(),
        compute_capability=compute_capability,
        has_gpu=True,
        device_memory_bytes=24 * 2**30,
        runtimes={"trt_rtx": version},
    )


@pytest.mark.parametrize("layout", ["split", "single"])
@pytest.mark.parametrize(("family", "precision"), BUILDS)
def test_every_build(built: Any, family: str, precision: str, layout: str) -> None:
    bundle: Built = built(family, precision, layout)
    path = bundle.report.path
    assert validate(path).errors == []
    version = bundle.manifest["engines"]["decode"]["backend_version"]
    assert check_bundle(path, target_of("8.9", "windows", version)).compatible
    assert not check_bundle(path, target_of("9.0", "linux", version)).compatible
    assert not check_bundle(path, target_of("8.9", "linux", "1.0.0")).compatible
    engines = bundle.manifest["engines"]
    assert list(engines) == (["decode"] if layout == "single" else ["decode", "prefill"])
    for role, engine in engines.items():
        assert engine["backend"] == "trt_rtx"
        assert engine["target"]["sm"] == ["8.0", "8.6", "8.9", "12.0", "12.1"]
        assert engine["target"]["os"] == ["linux", "windows"]
        assert engine["resident_bytes"]["weights"] > 0
        assert engine["rows"]["max"] == (1 if role == "decode" else 64)
        caches = [tensor for tensor in engine["inputs"] if tensor["name"].startswith("cache_")]
        assert {tensor["dtype"] for tensor in caches} <= {WORK_DTYPES[precision]}
    assert bundle.manifest["self_test"]["executed"] == "graphs"
    assert set(bundle.report.engine_builds) == set(engines)


@pytest.mark.parametrize(("family", "precision"), BUILDS)
def test_both_layouts_hold_one_decode_plan(built: Any, family: str, precision: str) -> None:
    """Its record and its bytes do not depend on whether a prefill engine stands beside it."""
    single, split = (built(family, precision, layout).manifest for layout in ("single", "split"))
    assert single["engines"]["decode"] == split["engines"]["decode"]
    assert single["sections"]["engine.plan"] == split["sections"]["engine.plan"]
    assert single["states"] == split["states"]


@pytest.mark.parametrize(("family", "precision"), BUILDS)
def test_both_engines_of_a_pair_are_recorded_alike(built: Any, family: str, precision: str) -> None:
    engines = built(family, precision, "split").manifest["engines"]
    decode, prefill = engines["decode"], engines["prefill"]
    for key in ("backend", "backend_version", "target", "builder_flags", "opset", "ir_version", "lowering"):
        assert decode[key] == prefill[key], key
    states = [[tensor for tensor in engine["inputs"] if tensor["role"] == "state"] for engine in (decode, prefill)]
    assert states[0] == states[1]
    assert decode["profile"] == {}
    assert prefill["profile"]["token_id"] == {"min": [1], "opt": [32], "max": [64]}


@pytest.mark.parametrize("family", TRAINED_CHECKPOINTS)
def test_what_precision_changes_in_the_record(built: Any, family: str) -> None:
    weights = {
        precision: built(family, precision, "split").manifest["engines"]["decode"]["resident_bytes"]["weights"]
        for precision in WORK_DTYPES
    }
    assert weights["fp16"] == weights["bf16"] < 0.55 * weights["fp32"]
    errors = {
        precision: max(built(family, precision, "split").report.worst_relative_error.values())
        for precision in WORK_DTYPES
    }
    assert errors["fp32"] <= 1e-4
    assert errors["fp16"] <= 2e-3
    assert errors["bf16"] <= 2e-2
