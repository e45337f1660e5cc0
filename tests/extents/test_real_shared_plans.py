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


@pytest.mark.parametrize("family", ["rwkv", "qwen3_5"])
def test_a_shared_plan_is_the_raw_one(
    family: str, rwkv_checkpoint: Path, qwen_checkpoint: Path, tmp_path: Path
) -> None:
    checkpoint = {"rwkv": rwkv_checkpoint, "qwen3_5": qwen_checkpoint}[family]
    stored, contents = {}, {}
    encodings: tuple[PlanEncoding, ...] = ("raw", "shared")
    for encoding in encodings:
        path = tmp_path / f"{encoding}.bundle"
        options = EngineOptions(plan_encoding=encoding)
        request = BuildRequest(
            checkpoint,
            path,
            backend="trt_rtx",
            precision="fp16",
            max_sequence_length=64,
            decoder_engine_layout="split",
            verify=False,
            engine_options=options,
        )
        build(request)
        assert validate(path).errors == []
        with open_bundle(path) as bundle:
            stored[encoding] = bundle.sections["prefill.plan"].length_bytes
            contents[encoding] = content_sha256(open_content(bundle.container, bundle.manifest, "prefill.plan"))
    # Each plan is built in a process of its own, so both builds made the same.
    assert contents["raw"] == contents["shared"]
    # All the weights and part of the kernels of these small models (4 and 4 million parameters).
    assert stored["shared"] < 0.45 * stored["raw"]


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
