"""Describe the machine this program runs on as a target."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from rowpack_loaders.compatibility.processor import processor_features
from rowpack_loaders.compatibility.target import Target, normal_arch, normal_os
from rowpack_loaders.devices.cuda_device import CudaDevice, first_cuda_device
from rowpack_loaders.host_memory import total_host_memory

# Distributions that carry each backend's library; the bindings are installed without the others too.
_DISTRIBUTIONS = {
    "ort": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "trt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu13-bindings"),
    "trt_rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu13-bindings"),
}


def target_here(find_device: Callable[[], CudaDevice | None] = first_cuda_device) -> Target:
    """Return what is known of this machine: system, installed runtimes, GPU, memory.

    Nothing is imported but package metadata, and the GPU is asked through its driver without using it.
    """
    device = find_device()
    return Target(
        os=normal_os(platform.system()),
        arch=normal_arch(platform.machine()),
        cpu_features=processor_features(),
        compute_capability=None if device is None else device.compute_capability,
        has_gpu=device is not None,
        driver=None if device is None else device.driver,
        device_memory_bytes=None if device is None else device.memory_bytes,
        host_memory_bytes=total_host_memory(),
        runtimes=installed_runtimes(),
        runtimes_complete=True,
    )


def installed_runtimes() -> dict[str, str]:
    """Return backend → version for every runtime library that is installed."""
    found = {}
    for backend, names in _DISTRIBUTIONS.items():
        for name in names:
            try:
                found[backend] = version(name)
            except PackageNotFoundError:
                continue
            break
    return found
