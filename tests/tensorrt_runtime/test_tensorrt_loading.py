"""Loading bundles of plans: what is checked before a plan is used, and what happens when there is no room for two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executing_library import ExecutingLibrary
from pretended_bundles import PretendedModel, plan_content, write_plan_bundle
from recording_device import RecordingDevice

from rowpack_loaders import RowpackError, load
from rowpack_loaders.runtimes.tensorrt import TensorRtxRuntime
from rowpack_loaders.runtimes.tensorrt import runtime as runtime_module

Models = dict[str, PretendedModel]


@pytest.fixture
def parts(models: Models, monkeypatch: pytest.MonkeyPatch) -> tuple[RecordingDevice, ExecutingLibrary]:
    """Put the pretended device and library where the real ones would be opened."""
    made = models["rwkv"].parts()
    monkeypatch.setattr(runtime_module, "_open_parts", lambda *arguments: made)
    return made


@pytest.mark.parametrize("shared", [False, True], ids=["raw", "shared"])
def test_a_bundle_of_plans_is_loaded_and_generates(
    shared: bool, parts: tuple[RecordingDevice, ExecutingLibrary], models: Models, tmp_path: Path
) -> None:
    path = write_plan_bundle(models["rwkv"], tmp_path / "x.bundle", shared=shared)
    with load(path) as decoder, load(models["rwkv"].onnx_bundle, threads=1) as reference:
        assert decoder.runtime.backend == "trt_rtx"
        assert decoder.runtime.has_prefill_engine
        found, expected = (each.generate([5, 6, 7], max_new_tokens=5) for each in (decoder, reference))
        assert found.token_ids == expected.token_ids
    assert parts[1].kept == 1


def test_a_changed_plan_never_reaches_the_library(
    parts: tuple[RecordingDevice, ExecutingLibrary], models: Models, tmp_path: Path
) -> None:
    for shared, name in ((False, b"prefill plan"), (True, b"prefill plan"), (True, b"decode plan")):
        path = write_plan_bundle(models["rwkv"], tmp_path / "x.bundle", shared=shared)
        data = bytearray(path.read_bytes())
        data[data.index(name) + 4] ^= 1
        path.write_bytes(data)
        parts[1].engines.clear()
        with pytest.raises(RowpackError) as caught:
            load(path, layout="split")
        assert caught.value.code == "section_digest_mismatch"
        assert list(parts[1].engines) == []


def test_without_room_for_two_engines_prompts_run_through_one(
    parts: tuple[RecordingDevice, ExecutingLibrary], models: Models, tmp_path: Path
) -> None:
    device, _ = parts
    path = write_plan_bundle(models["rwkv"], tmp_path / "x.bundle")
    device.total_bytes = 1999
    with pytest.warns(UserWarning, match="ran out of memory"):
        decoder = load(path)
    assert not decoder.runtime.has_prefill_engine
    del decoder
    with pytest.raises(RowpackError) as caught:
        load(path, layout="split")
    assert caught.value.code == "engine_out_of_memory"
    device.total_bytes = 999
    with pytest.raises(RowpackError) as caught:
        load(path, layout="single")
    assert caught.value.code == "engine_out_of_memory"
    assert "999 bytes free" in str(caught.value.problem.found)


def test_the_hosts_memory_does_not_decide_for_a_gpu(
    parts: tuple[RecordingDevice, ExecutingLibrary],
    models: Models,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rowpack_loaders import decoder as decoder_module

    monkeypatch.setattr(decoder_module, "available_host_memory", lambda: 1)
    assert load(write_plan_bundle(models["rwkv"], tmp_path / "x.bundle")).runtime.has_prefill_engine


def test_a_library_that_refuses_a_plan_is_quoted(models: Models) -> None:
    device, library = models["rwkv"].parts()
    with pytest.raises(RowpackError) as caught:
        TensorRtxRuntime(models["rwkv"].model, {"decode": plan_content("broken")}, None, parts=(device, library))
    assert caught.value.code == "engine_load_failed"
    assert "Version tag does not match" in str(caught.value.problem.found)
    assert "1.7.1.116" in str(caught.value.problem.expected)
    assert device.closed


@pytest.mark.parametrize(
    ("capability", "version", "code", "found"),
    [
        ("7.5", "1.7.1.116", "target_compute_capability_mismatch", "compute capability 7.5"),
        ("8.9", "1.7.2.1", "target_runtime_version_mismatch", "tensorrt-rtx 1.7.2.1"),
    ],
)
def test_a_plan_for_another_machine_is_not_handed_over(
    capability: str, version: str, code: str, found: str, models: Models
) -> None:
    device, library = models["rwkv"].parts()
    device.compute_capability = capability
    library.version = version
    with pytest.raises(RowpackError) as caught:
        TensorRtxRuntime(models["rwkv"].model, {"decode": plan_content("decode")}, None, parts=(device, library))
    assert caught.value.code == "engine_not_for_this_machine"
    assert [(problem.code, problem.found) for problem in caught.value.problems] == [(code, found)]
    assert all(problem.expected and problem.remedy for problem in caught.value.problems)
    assert list(library.engines) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("token_id", {"dtype": "int64"}),
        ("conv_state_0", {"shape": (4, 4)}),
        ("cache_k_0", {"shape": (7, 128)}),
        ("logits", {"shape": (-1, 2048)}),
        ("present_ssm_1", {"is_input": True}),
        ("present_k_0", {"name": "renamed"}),
    ],
)
def test_an_engine_with_one_deviation_is_refused(name: str, change: dict[str, Any], models: Models) -> None:
    device, library = models["qwen3_5"].parts()
    library.changes[name] = change
    with pytest.raises(RowpackError) as caught:
        TensorRtxRuntime(models["qwen3_5"].model, {"decode": plan_content("decode")}, None, parts=(device, library))
    assert caught.value.code == "engine_io_mismatch"
    assert any(name in str(problem.where) for problem in caught.value.problems)


def test_a_prefill_engine_for_other_row_counts_is_refused(models: Models) -> None:
    device, library = models["qwen3_5"].parts()
    library.changes["token_id"] = {"profile": ((1,), (8,))}
    engines = {role: plan_content(role) for role in ("decode", "prefill")}
    with pytest.raises(RowpackError) as caught:
        TensorRtxRuntime(models["qwen3_5"].model, engines, None, parts=(device, library))
    assert [problem.where for problem in caught.value.problems] == ["prefill.plan: token_id"]
    assert "row counts" in str(caught.value.problem.found or caught.value.problems[0].found)


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "cuda:", "tpu"])
def test_a_device_that_is_no_gpu_is_refused(device: str, models: Models) -> None:
    with pytest.raises(RowpackError) as caught:
        runtime_module._device_index(device)
    assert caught.value.code == "device_unsupported"
    assert runtime_module._device_index(None) == 0
    assert runtime_module._device_index("cuda:3") == 3


def test_plans_do_not_run_on_another_runtime(models: Models, tmp_path: Path) -> None:
    path = write_plan_bundle(models["rwkv"], tmp_path / "x.bundle")
    with pytest.raises(RowpackError) as caught:
        load(path, runtime="ort")
    assert caught.value.code == "runtime_unsuitable"


def test_the_name_of_a_cache_tells_model_and_device() -> None:
    name = runtime_module.cache_file_name("NVIDIA GeForce RTX 4090", "sha256:" + "ab" * 32)
    assert name == "abababababababab-nvidia-geforce-rtx-4090.runtime-cache"
    assert runtime_module.cache_file_name("../../etc", None) == "unknown-etc.runtime-cache"


def test_logits_of_a_leading_chunk_stay_on_the_device(models: Models) -> None:
    device, library = models["rwkv"].parts()
    engines = {role: plan_content(role) for role in ("decode", "prefill")}
    sequence = TensorRtxRuntime(models["rwkv"].model, engines, None, parts=(device, library)).open_sequence()
    device.log.clear()
    sequence.run_leading_chunk(np.arange(16, dtype=np.int32))
    assert "download" not in device.log
    sequence.run_chunk(np.arange(4, dtype=np.int32))
    assert device.log.count("download") == 1
