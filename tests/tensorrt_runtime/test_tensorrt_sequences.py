"""Sequences on TensorRT engines give what ONNX Runtime gives, token by token, under the library's rules."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from pretended_bundles import CACHE_ROWS, CHECKPOINTS, PretendedModel, make_model, plan_content

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.runtimes.tensorrt import TensorRtxRuntime
from rowpack_loaders.session import Session

Models = dict[str, PretendedModel]
FAMILIES = ("qwen3_5", "rwkv")
TOLERANCE = 2e-4


class OnGpu:
    """A model on the pretended GPU."""

    def __init__(self, model: PretendedModel, roles: tuple[str, ...] = ("decode", "prefill")) -> None:
        self.device, self.library = model.parts()
        engines = {role: plan_content(role) for role in roles}
        self.runtime = TensorRtxRuntime(model.model, engines, None, parts=(self.device, self.library))
        self.decoder = Decoder(self.runtime.model, self.runtime)

    def session(self, **options: Any) -> Session:
        """Return a new session."""
        return self.decoder.session(**options)


def close(found: Any, expected: Any) -> bool:
    """Tell whether logits agree within the tolerance of float32 products in another order."""
    return bool(np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_and_steps_agree_with_onnx_runtime(family: str, mode: Any, models: Models) -> None:
    gpu, onnx = OnGpu(models[family]), load(models[family].onnx_bundle, threads=1)
    session, reference = gpu.session(), onnx.session()
    for length in (1, 2, 15, 16, 17, 33):
        prompt = [(7 * index + length) % 2000 for index in range(length)]
        expected = reference.prefill(prompt, mode=mode)
        assert close(session.prefill(prompt, mode=mode), expected), length
        assert session.prefill_run == reference.prefill_run
        for _ in range(6):
            token = int(np.argmax(expected))
            expected = reference.step(token)
            assert close(session.step(token), expected)
        assert session.position == reference.position


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_gives_the_same_tokens(family: str, models: Models) -> None:
    gpu, onnx = OnGpu(models[family]), load(models[family].onnx_bundle, threads=1)
    for prompt in ([5, 6, 7], list(range(100, 120))):
        found, expected = (decoder.generate(prompt, max_new_tokens=12) for decoder in (gpu.decoder, onnx))
        assert found.token_ids == expected.token_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bundle_with_one_engine_runs_prompts_row_by_row(family: str, models: Models) -> None:
    gpu = OnGpu(models[family], ("decode",))
    session, reference = gpu.session(), load(models[family].onnx_bundle, threads=1).session()
    prompt = list(range(20))
    assert close(session.prefill(prompt), reference.prefill(prompt))
    assert session.prefill_run.mode == "token-loop"


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_take_turns_on_one_context(family: str, models: Models) -> None:
    gpu = OnGpu(models[family])
    one, two = gpu.session(), gpu.session()
    apart = [OnGpu(models[family]).session() for _ in range(2)]
    prompts = [list(range(18)), list(range(50, 55))]
    for session, alone, prompt in zip((one, two), apart, prompts, strict=True):
        assert np.array_equal(session.prefill(prompt), alone.prefill(prompt))
    for step in range(8):
        assert np.array_equal(one.step(step), apart[0].step(step))
        assert np.array_equal(two.step(step + 9), apart[1].step(step + 9))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decode_run_is_recorded_once_for_each_side_of_the_states(family: str, models: Models) -> None:
    gpu = OnGpu(models[family])
    session = gpu.session()
    session.prefill([1, 2, 3])
    gpu.device.log.clear()
    for step in range(10):
        session.step(step)
    # Two runs as they are, two while they are recorded, and ten minus two launches.
    assert gpu.device.log.count("execute") == 4
    assert gpu.device.log.count("launch") == 8
    assert gpu.device.living_graphs == 2


@pytest.mark.parametrize("reason", ["the library", "the device"])
def test_what_cannot_be_recorded_is_run_as_it_is(reason: str, models: Models) -> None:
    gpu = OnGpu(models["qwen3_5"])
    if reason == "the library":
        gpu.library.engines["decode"].can_be_captured = False
    else:
        gpu.device.fails_to_record = True
    session, reference = gpu.session(), OnGpu(models["qwen3_5"]).session()
    session.prefill([1, 2, 3])
    reference.prefill([1, 2, 3])
    for step in range(6):
        assert np.array_equal(session.step(step), reference.step(step))
    assert "launch" not in gpu.device.log


@pytest.mark.parametrize("family", FAMILIES)
def test_snapshots_go_from_runtime_to_runtime(family: str, models: Models) -> None:
    gpu, onnx = OnGpu(models[family]).session(), load(models[family].onnx_bundle, threads=1).session()
    prompt = list(range(30, 52))
    gpu.prefill(prompt)
    snapshot = gpu.snapshot()
    expected = [gpu.step(token).copy() for token in (1, 2, 3)]
    gpu.restore(snapshot)
    assert all(np.array_equal(gpu.step(token), wanted) for token, wanted in zip((1, 2, 3), expected, strict=True))
    # The digest differs, as the manifests do; the content is one model's.
    onnx.prefill(prompt)
    there = onnx.snapshot()
    assert snapshot.states.keys() == there.states.keys()
    for name, array in snapshot.states.items():
        assert array.shape == there.states[name].shape
        assert array.dtype == there.states[name].dtype
        assert np.abs(array - there.states[name]).max() <= TOLERANCE * max(1e-3, np.abs(there.states[name]).max())


def test_a_sliding_cache_goes_round(models: Models) -> None:
    gpu = OnGpu(models["qwen3_5"]).session(overflow="slide")
    onnx = load(models["qwen3_5"].onnx_bundle, threads=1).session(overflow="slide")
    prompt = [(11 * index) % 1900 for index in range(CACHE_ROWS - 3)]
    assert close(gpu.prefill(prompt), onnx.prefill(prompt))
    for step in range(12):
        assert close(gpu.step(step), onnx.step(step)), step
    assert gpu.slid_rows == onnx.slid_rows == 9
    snapshot, there = gpu.snapshot(), onnx.snapshot()
    for name, array in snapshot.states.items():
        assert array.shape == there.states[name].shape
        assert np.abs(array - there.states[name]).max() <= TOLERANCE * np.abs(there.states[name]).max(), name
    following = [gpu.step(token).copy() for token in (3, 4)]
    gpu.restore(snapshot)
    assert all(close(gpu.step(token), wanted) for token, wanted in zip((3, 4), following, strict=True))


def test_a_reset_starts_from_the_initial_values(models: Models) -> None:
    for family in FAMILIES:
        gpu = OnGpu(models[family])
        session = gpu.session()
        first = session.prefill([9, 8, 7])
        session.step(4)
        assert np.array_equal(session.prefill([9, 8, 7]), first)


def test_initial_values_other_than_zero_are_put_in(models: Models) -> None:
    manifest = models["rwkv"].manifest
    model = PretendedModel(
        models["rwkv"].onnx_bundle,
        manifest
        | {
            "states": [
                state | {"initial_value": -1e38 if state["role"] == "wkv_max" else 0.0} for state in manifest["states"]
            ]
        },
        models["rwkv"].graphs,
    )
    gpu, zero = OnGpu(model), OnGpu(models["rwkv"])
    session = gpu.session()
    states = session.snapshot().states
    assert {float(array.min()) for name, array in states.items() if name.startswith("max_state")} == {np.float32(-1e38)}
    assert close(session.prefill([1, 2, 3]), zero.session().prefill([1, 2, 3]))


def fail_run(gpu: OnGpu) -> None:
    gpu.library.engines["decode"].fails_next_run = True


def fail_stream(gpu: OnGpu) -> None:
    gpu.device.fails_at_next_synchronisation = True


@pytest.mark.parametrize("fail", [fail_run, fail_stream])
def test_an_error_drains_the_stream_and_leaves_the_model_usable(fail: Any, models: Models) -> None:
    gpu = OnGpu(models["qwen3_5"])
    session, other = gpu.session(), gpu.session()
    session.prefill([1, 2, 3])
    other.prefill([1, 2, 3])
    fail(gpu)
    with pytest.raises(RowpackError) as caught:
        session.step(4)
    assert caught.value.code == "engine_run_failed"
    assert not gpu.device.pending
    with pytest.raises(RowpackError, match="session_unusable"):
        session.step(4)
    fresh = OnGpu(models["qwen3_5"]).session()
    fresh.prefill([1, 2, 3])
    assert np.array_equal(other.step(4), fresh.step(4))
    assert close(session.prefill([1, 2, 3]), fresh.prefill([1, 2, 3]))


def test_memory_is_given_back_with_the_sequence(models: Models) -> None:
    gpu = OnGpu(models["qwen3_5"])
    before = len(gpu.device.memory)
    session = gpu.session()
    session.prefill([1, 2, 3])
    for step in range(6):
        session.step(step)
    assert len(gpu.device.memory) == before + 1
    assert gpu.device.living_graphs == 2
    del session
    assert len(gpu.device.memory) == before
    assert gpu.device.pinned_blocks == gpu.device.living_graphs == 0


def test_a_sequence_that_does_not_fit_is_refused(models: Models) -> None:
    gpu = OnGpu(models["qwen3_5"])
    gpu.device.total_bytes = sum(map(len, gpu.device.memory.values())) + 1000
    with pytest.raises(RowpackError) as caught:
        gpu.session()
    assert caught.value.code == "engine_out_of_memory"


def test_several_threads_get_what_one_gets(models: Models) -> None:
    gpu = OnGpu(models["rwkv"])
    expected = [gpu.decoder.generate([start, start + 1], max_new_tokens=6).token_ids for start in range(4)]
    found: dict[int, Any] = {}

    def work(start: int) -> None:
        found[start] = gpu.decoder.generate([start, start + 1], max_new_tokens=6).token_ids

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[start] for start in range(4)] == expected


def test_half_precision_caches(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = make_model(CHECKPOINTS["qwen3_5"], tmp_path_factory.mktemp("half"), "fp16")
    gpu, onnx = OnGpu(model).session(), load(model.onnx_bundle, threads=1).session()
    prompt = list(range(20))
    found, expected = gpu.prefill(prompt), onnx.prefill(prompt)
    assert np.abs(found - expected).max() <= 2e-2 * np.abs(expected).max()
    assert gpu.snapshot().states["cache_k_0"].dtype == np.float16
