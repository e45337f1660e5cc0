"""Find out how much memory the device has that a bundle is for, and where the figure comes from.

What the user says counts first: ``--target-memory``, then ``--target-gpu`` by the table of published GPUs. Else the
build machine is asked: its GPU for engines that run on one, its processor's memory (as control groups grant it) for
the others. Where nobody can tell, the capacity is unknown, and an ``auto`` build is single.
"""

from __future__ import annotations

from collections.abc import Callable

from rowpack.gate import UNKNOWN_CAPACITY, Capacity, CapacitySource
from rowpack_loaders.devices.cuda_device import CudaDevice, first_cuda_device
from rowpack_loaders.devices.published_gpus import find_published_gpu
from rowpack_loaders.host_memory import total_host_memory


def find_capacity(
    target_memory_bytes: int | None,
    target_gpu: str | None,
    *,
    on_gpu: bool,
    find_device: Callable[[], CudaDevice | None] = first_cuda_device,
    host_memory: Callable[[], int | None] = total_host_memory,
) -> Capacity:
    """Return the capacity for engines that run ``on_gpu`` or on the processor; raises ``gpu_unknown``."""
    if target_memory_bytes is not None:
        return Capacity(target_memory_bytes, CapacitySource.TARGET_MEMORY)
    if target_gpu is not None:
        gpu = find_published_gpu(target_gpu)
        return Capacity(gpu.memory_bytes, CapacitySource.TARGET_GPU, gpu.name)
    if on_gpu:
        device = find_device()
        if device is None:
            return UNKNOWN_CAPACITY
        source = CapacitySource.UNIFIED_MEMORY if device.unified else CapacitySource.DEVICE
        return Capacity(device.memory_bytes, source, device.name)
    host_bytes = host_memory()
    return UNKNOWN_CAPACITY if host_bytes is None else Capacity(host_bytes, CapacitySource.HOST_MEMORY)
