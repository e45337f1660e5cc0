"""The pretended device and library refuse what breaks a rule: otherwise passing under them would mean little."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from executing_library import ExecutingContext
from pretended_bundles import PretendedModel, plan_content
from recording_device import RecordingDevice, RuleError

from rowpack_loaders.runtimes.tensorrt import geometry
from rowpack_loaders.runtimes.tensorrt import sequence as sequence_module
from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError

Models = dict[str, PretendedModel]


@pytest.fixture
def device() -> RecordingDevice:
    made = RecordingDevice(10**6)
    made.activate()
    return made


def test_work_is_done_when_the_stream_is_synchronised(device: RecordingDevice) -> None:
    address = device.allocate(4)
    source, target = bytearray(b"good"), bytearray(4)
    device.upload(address, memoryview(source))
    source[:] = b"late"  # reused too early
    device.download(memoryview(target), address)
    assert target == bytes(4)  # read too early
    device.synchronize()
    assert target == b"late"


def test_memory_rules(device: RecordingDevice) -> None:
    address = device.allocate(100)
    with pytest.raises(RuleError, match="lie in no allocation"):
        device.zero(address, 101)
    with pytest.raises(RuleError, match="lie in no allocation"):
        device.copy(address + 90, address, 20)
    with pytest.raises(RuleError, match="do not overlap"):
        device.copy(address + 5, address, 10)
    device.zero(address, 1)
    with pytest.raises(RuleError, match="no work can use it"):
        device.free(address)
    device.synchronize()
    device.free(address)
    with pytest.raises(RuleError, match="freed once"):
        device.free(address)


def test_every_thread_activates_the_device(device: RecordingDevice) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            device.allocate(1)
        except RuleError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1


def context(models: Models) -> tuple[RecordingDevice, ExecutingContext]:
    """Return a context of the decode engine with every address set."""
    device, library = models["rwkv"].parts()
    engine = library.load_engine(plan_content("decode"))
    made = engine.create_context()
    for tensor in engine.tensors:
        address = device.allocate(4 * int(np.prod(tensor.shape)))
        device.zero(address, 4)
        made.set_address(tensor.name, address)
    return device, made


def test_library_rules(models: Models) -> None:
    device, made = context(models)
    made.execute()
    device.synchronize()
    with pytest.raises(RuleError, match="not on a multiple of 256"):
        made.set_address("token_id", device.allocate(512) + 4)
    made.set_address("present_num_0", made._addresses["num_state_0"])
    with pytest.raises(RuleError, match="overlap"):
        made.execute()
    del made._addresses["token_id"]
    with pytest.raises(RuleError, match="the address of token_id was not set"):
        made.execute()
    _, library = models["rwkv"].parts()
    prefill = library.load_engine(plan_content("prefill")).create_context()
    with pytest.raises(DeviceError, match="outside the profile"):
        prefill.set_shape("token_id", (17,))
    with pytest.raises(RuleError, match="there is no tensor"):
        prefill.set_shape("nothing", (1,))


def test_a_runtime_that_forgets_a_rule_is_caught(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_tensorrt_sequences import OnGpu

    monkeypatch.setattr(sequence_module.TensorRtSequence, "_set_shapes", lambda *arguments: None)
    with pytest.raises(Exception, match=r"the shape of token_id was not set"):
        OnGpu(models["rwkv"]).session().prefill([1, 2, 3])


@pytest.mark.parametrize("wrong", ["front", "rows"])
def test_a_runtime_that_mixes_up_buffers_gives_other_logits(
    wrong: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_tensorrt_sequences import OnGpu

    expected = OnGpu(models["qwen3_5"]).session().prefill(list(range(20)))
    if wrong == "rows":
        monkeypatch.setattr(sequence_module.TensorRtSequence, "_place_rows", lambda *arguments: None)
    else:
        monkeypatch.setattr(sequence_module, "run_shape", geometry.run_shape)
        original = sequence_module.TensorRtSequence._run

        def forget_to_swap(self: Any, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            self._front ^= 1

        monkeypatch.setattr(sequence_module.TensorRtSequence, "_run", forget_to_swap)
    found = OnGpu(models["qwen3_5"]).session().prefill(list(range(20)))
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()
