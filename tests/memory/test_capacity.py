"""Where the memory of the target comes from, most certain first."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowpack import BuildRequest
from rowpack.capacity import find_capacity
from rowpack.gate import Capacity, CapacitySource
from rowpack_loaders import RowpackError
from rowpack_loaders.devices.cuda_device import CudaDevice

BOARD = CudaDevice("NVIDIA L40S", 48 * 10**9, "8.9", unified=False, driver=None, asked="cuda_driver")
SHARED = CudaDevice("NVIDIA GB10", 119 * 10**9, "12.1", unified=True, driver=None, asked="cuda_driver")


@pytest.mark.parametrize(
    ("memory", "gpu", "on_gpu", "device", "expected"),
    [
        (10**9, None, True, BOARD, Capacity(10**9, CapacitySource.TARGET_MEMORY)),
        (10**9, "L4", True, BOARD, Capacity(10**9, CapacitySource.TARGET_MEMORY)),
        (None, "L4", True, BOARD, Capacity(24 * 10**9, CapacitySource.TARGET_GPU, "L4")),
        (None, None, True, BOARD, Capacity(48 * 10**9, CapacitySource.DEVICE, "NVIDIA L40S")),
        (None, None, True, SHARED, Capacity(119 * 10**9, CapacitySource.UNIFIED_MEMORY, "NVIDIA GB10")),
        (None, None, True, None, Capacity(None, CapacitySource.UNKNOWN)),
        (None, None, False, BOARD, Capacity(7 * 10**9, CapacitySource.HOST_MEMORY)),
        (10**9, None, False, None, Capacity(10**9, CapacitySource.TARGET_MEMORY)),
    ],
)
def test_the_most_certain_figure_counts(
    memory: int | None, gpu: str | None, on_gpu: bool, device: CudaDevice | None, expected: Capacity
) -> None:
    found = find_capacity(memory, gpu, on_gpu=on_gpu, find_device=lambda: device, host_memory=lambda: 7 * 10**9)
    assert found == expected


def test_a_host_that_does_not_say_is_unknown() -> None:
    unknown = find_capacity(None, None, on_gpu=False, find_device=lambda: BOARD, host_memory=lambda: None)
    assert unknown == Capacity(None, CapacitySource.UNKNOWN)


def test_a_request_for_an_unknown_gpu_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RowpackError) as caught:
        BuildRequest(checkpoint=tmp_path, output=tmp_path, target_gpu="abacus")
    assert caught.value.code == "gpu_unknown"
