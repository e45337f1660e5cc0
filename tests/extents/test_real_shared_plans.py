"""Plans of the real compiler: stored both ways they are the same plan, and the second is mostly the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rowpack import BuildRequest, build
from rowpack.engines.options import EngineOptions, PlanEncoding
from rowpack_loaders import open_bundle, validate
from rowpack_loaders.devices.cuda_device import first_cuda_device
from rowpack_loaders.section_content import content_sha256, open_content

pytestmark = pytest.mark.trt_rtx


def stored_and_whole(checkpoint: Path, path: Path, encoding: PlanEncoding) -> tuple[int, int, str]:
    """Build a pair; return the bytes that its prefill plan takes in the file, and length and SHA-256 of the plan."""
    request = BuildRequest(
        checkpoint,
        path,
        backend="trt_rtx",
        precision="fp16",
        max_sequence_length=64,
        decoder_engine_layout="split",
        verify=False,
        engine_options=EngineOptions(plan_encoding=encoding),
    )
    build(request)
    assert validate(path).errors == []
    with open_bundle(path) as bundle:
        plan = open_content(bundle.container, bundle.manifest, "prefill.plan")
        return bundle.sections["prefill.plan"].length_bytes, plan.length_bytes, content_sha256(plan)


LARGEST_SHARE = 0.45
"""All the weights and part of the kernels of the small models (4 million parameters each) are in both plans."""


def test_a_shared_plan_is_the_raw_one(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    """Each plan is built in a process of its own, so both builds make the same."""
    raw = stored_and_whole(rwkv_checkpoint, tmp_path / "raw.bundle", "raw")
    shared = stored_and_whole(rwkv_checkpoint, tmp_path / "shared.bundle", "shared")
    assert raw[0] == raw[1]
    assert shared[1:] == raw[1:]
    assert shared[0] < LARGEST_SHARE * raw[0]


def test_most_of_a_plan_with_delta_rules_is_shared_too(qwen_checkpoint: Path, tmp_path: Path) -> None:
    stored_bytes, length_bytes, _ = stored_and_whole(qwen_checkpoint, tmp_path / "shared.bundle", "shared")
    assert stored_bytes < LARGEST_SHARE * length_bytes


@pytest.mark.skipif(first_cuda_device() is not None, reason="with a GPU, pytest -m gpu_trt loads and runs plans")
def test_a_rebuilt_plan_is_whole_to_the_library(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    from types import SimpleNamespace

    from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError
    from rowpack_loaders.runtimes.tensorrt.nvidia_library import NvidiaLibrary

    path = tmp_path / "x.bundle"
    options: dict[str, Any] = {"backend": "trt_rtx", "precision": "fp16", "max_sequence_length": 64, "verify": False}
    build(BuildRequest(rwkv_checkpoint, path, decoder_engine_layout="split", **options))
    device: Any = SimpleNamespace(stream=0)
    with open_bundle(path) as bundle:
        for section in ("engine.plan", "prefill.plan"):
            content = open_content(bundle.container, bundle.manifest, section)
            # Without a GPU the library checks a plan's form and size, and then misses the driver.
            with pytest.raises(DeviceError, match="Cuda Runtime"):
                NvidiaLibrary("trt_rtx", device).load_engine(content)
