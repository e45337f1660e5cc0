"""Asking drivers that are not there, through libraries that answer as NVIDIA's do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rowpack_loaders.devices import cuda_device
from rowpack_loaders.devices.cuda_device import first_cuda_device

GIB = 2**30


def cuda(*, memory: int = 46 * GIB, integrated: int = 0, broken: str = "") -> Any:
    """Return the CUDA driver, as far as it is asked; ``broken`` names a function that fails."""
    attributes = {75: 8, 76: 9, 18: integrated}

    def get(device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def total_memory(total: Any, device: Any) -> int:
        total._obj.value = memory
        return 0

    def name(buffer: Any, length: int, device: Any) -> int:
        buffer.value = b"NVIDIA L40S"
        return 0

    def attribute(value: Any, number: int, device: Any) -> int:
        value._obj.value = attributes[number]
        return 0

    functions: dict[str, Callable[..., int]] = {
        "cuInit": lambda flags: 0,
        "cuDeviceGet": get,
        "cuDeviceTotalMem_v2": total_memory,
        "cuDeviceGetName": name,
        "cuDeviceGetAttribute": attribute,
    }
    if broken:
        functions[broken] = lambda *arguments: 1
    return SimpleNamespace(**functions)


class NvmlError(Exception):
    """Any error of NVML."""


class NvmlNotSupportedError(NvmlError):
    """What NVML says of the memory of integrated GPUs."""


def nvml(*, memory: int | None = 40 * GIB, driver: bool = True) -> Any:
    """Return NVML, as far as it is asked; ``sessions`` counts the open ones."""
    library = SimpleNamespace(NVMLError=NvmlError, NVMLError_NotSupported=NvmlNotSupportedError, sessions=0)

    def count(change: int) -> None:
        if not driver:
            raise NvmlError
        library.sessions += change

    def memory_info(handle: str) -> Any:
        if memory is None:
            raise NvmlNotSupportedError
        return SimpleNamespace(total=memory)

    library.nvmlInit = lambda: count(1)
    library.nvmlShutdown = lambda: count(-1)
    library.nvmlSystemGetDriverVersion = lambda: b"580.65.06"
    library.nvmlDeviceGetHandleByIndex = lambda index: "handle"
    library.nvmlDeviceGetName = lambda handle: "NVIDIA A100-SXM4-40GB"
    library.nvmlDeviceGetCudaComputeCapability = lambda handle: (8, 0)
    library.nvmlDeviceGetMemoryInfo = memory_info
    return library


def missing() -> Any:
    """Fail as loading a library that is not there does."""
    raise OSError("libcuda.so.1: cannot open shared object file")


def not_installed() -> Any:
    """Fail as importing a package that is not there does."""
    raise ImportError("No module named 'pynvml'")


def test_the_cuda_driver_is_believed_first() -> None:
    session = nvml()
    device = first_cuda_device(cuda, lambda: session)
    assert device is not None
    assert (device.name, device.memory_bytes, device.compute_capability) == ("NVIDIA L40S", 46 * GIB, "8.9")
    assert (device.unified, device.driver, device.asked) == (False, "580.65.06", "cuda_driver")
    assert session.sessions == 0


def test_without_the_cuda_driver_nvml_is_asked() -> None:
    for load in (missing, lambda: cuda(broken="cuInit"), lambda: cuda(broken="cuDeviceGetAttribute")):
        device = first_cuda_device(load, nvml)
        assert device is not None
        assert (device.memory_bytes, device.compute_capability, device.asked) == (40 * GIB, "8.0", "nvml")


def test_without_either_there_is_no_device() -> None:
    assert first_cuda_device(missing, not_installed) is None
    assert first_cuda_device(missing, lambda: nvml(driver=False)) is None


@pytest.mark.parametrize("broken", ["cuInit", "cuDeviceGet", "cuDeviceTotalMem_v2", "cuDeviceGetName"])
def test_a_driver_that_fails_is_no_device(broken: str) -> None:
    assert first_cuda_device(lambda: cuda(broken=broken), not_installed) is None


def test_shared_memory_is_bounded_by_what_the_host_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_device, "total_host_memory", lambda: 64 * GIB)
    device = first_cuda_device(lambda: cuda(memory=120 * GIB, integrated=1), not_installed)
    assert device is not None
    assert (device.memory_bytes, device.unified) == (64 * GIB, True)
    # A board's own memory is not the host's.
    device = first_cuda_device(lambda: cuda(memory=120 * GIB), not_installed)
    assert device is not None
    assert (device.memory_bytes, device.unified) == (120 * GIB, False)
    # NVML has no figure for some integrated GPUs.
    device = first_cuda_device(missing, lambda: nvml(memory=None))
    assert device is not None
    assert (device.memory_bytes, device.unified) == (64 * GIB, True)
    monkeypatch.setattr(cuda_device, "total_host_memory", lambda: None)
    assert first_cuda_device(missing, lambda: nvml(memory=None)) is None
    device = first_cuda_device(lambda: cuda(memory=120 * GIB, integrated=1), not_installed)
    assert device is not None
    assert device.memory_bytes == 120 * GIB


def test_the_driver_version_is_read_from_the_kernel_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "version"
    module.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 12.2.0\n")
    monkeypatch.setattr(cuda_device, "_KERNEL_MODULE", module)
    device = first_cuda_device(cuda, not_installed)
    assert device is not None
    assert device.driver == "580.65.06"
    monkeypatch.setattr(cuda_device, "_KERNEL_MODULE", tmp_path / "no module")
    device = first_cuda_device(cuda, not_installed)
    assert device is not None
    assert device.driver is None
