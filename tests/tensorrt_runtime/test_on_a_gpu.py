"""Real plans on a real GPU, against ONNX Runtime, token by token.

``pytest -m gpu_trt`` on any machine with a GPU that TensorRT for RTX or the full TensorRT supports. Builds the two
trained models there, so it needs nothing but the extras ``trt-rtx`` or ``trt``.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretended_bundles import CHECKPOINTS

from rowpack import BuildRequest, build
from rowpack_loaders import load
from rowpack_loaders.compatibility import check_bundle, target_here
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.devices.cuda_device import first_cuda_device
from rowpack_loaders.selftest import run_self_test

pytestmark = pytest.mark.gpu_trt

TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}
LIBRARIES = {"trt": "tensorrt", "trt_rtx": "tensorrt_rtx"}


@pytest.fixture(scope="module", params=["trt_rtx", "trt"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each flavour that is installed."""
    if importlib.util.find_spec(LIBRARIES[request.param]) is None:
        pytest.skip(f"{LIBRARIES[request.param]} is not installed")
    if first_cuda_device() is None:
        pytest.skip("there is no NVIDIA GPU")
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=["qwen3_5", "rwkv"])
def family(request: pytest.FixtureRequest) -> str:
    """Each family."""
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=["fp32", "fp16", "bf16"])
def precision(request: pytest.FixtureRequest) -> str:
    """Each precision."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pair(
    backend: str, family: str, precision: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Decoder, Decoder, Path]]:
    """The same model on the GPU and on ONNX Runtime (which has no bfloat16 and runs float32 for it)."""
    folder = tmp_path_factory.mktemp(f"{backend}-{family}-{precision}")
    options: dict[str, Any] = {"max_sequence_length": 256, "decoder_engine_layout": "split"}
    plans, graphs = folder / "plans.bundle", folder / "graphs.bundle"
    build(BuildRequest(CHECKPOINTS[family], plans, backend=backend, precision=precision, **options))
    build(BuildRequest(CHECKPOINTS[family], graphs, precision="fp16" if precision == "fp16" else "fp32", **options))
    report = check_bundle(plans, target_here(), ask_library=True)
    if not report.compatible:
        pytest.skip("; ".join(f"{reason.message}: {reason.found}" for reason in report.reasons))
    with load(plans, layout="split") as gpu, load(graphs) as reference:
        yield gpu, reference, plans
    gc.collect()


@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_prompts_and_steps_agree(pair: tuple[Decoder, Decoder, Path], precision: str, mode: Any) -> None:
    gpu, reference, _ = pair
    session, other = gpu.session(), reference.session()
    for length in (1, 3, 63, 64, 65, 130):
        prompt = [(7 * index + length) % 2000 for index in range(length)]
        expected = other.prefill(prompt, mode=mode)
        found = session.prefill(prompt, mode=mode)
        assert np.abs(found - expected).max() <= TOLERANCE[precision] * np.abs(expected).max(), length
        for _ in range(16):
            token = int(np.argmax(expected))
            expected, found = other.step(token), session.step(token)
            assert np.abs(found - expected).max() <= TOLERANCE[precision] * np.abs(expected).max()


def test_greedy_tokens_are_the_same_in_float32(pair: tuple[Decoder, Decoder, Path], precision: str) -> None:
    if precision != "fp32":
        pytest.skip("roundings of halves may decide a near tie either way")
    gpu, reference, _ = pair
    for prompt in ([5, 6, 7], list(range(100, 200))):
        found, expected = (decoder.generate(prompt, max_new_tokens=64) for decoder in (gpu, reference))
        assert found.token_ids == expected.token_ids


def test_the_golden_vectors_hold(pair: tuple[Decoder, Decoder, Path]) -> None:
    gpu, _, _ = pair
    assert run_self_test(gpu).passed


def test_a_runtime_cache_is_made_and_used(pair: tuple[Decoder, Decoder, Path], backend: str, tmp_path: Path) -> None:
    if backend != "trt_rtx":
        pytest.skip("the full library compiles nothing at load")
    _, _, plans = pair
    first = load(plans, cache_folder=tmp_path).generate([1, 2, 3], max_new_tokens=4)
    (cache,) = tmp_path.iterdir()
    assert cache.stat().st_size > 0
    assert load(plans, cache_folder=tmp_path).generate([1, 2, 3], max_new_tokens=4).token_ids == first.token_ids
