"""Ask the NVIDIA driver what GPU this machine has, without creating a context on it.

The CUDA driver comes first: it respects ``CUDA_VISIBLE_DEVICES``, sees a MIG slice as the device it is, and counts
devices as runtimes do. NVML (package nvidia-ml-py) is asked where the CUDA driver is not to be had, and for the
driver's version. An integrated GPU shares the processor's memory; what a control group grants of it bounds both.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack_loaders.host_memory import total_host_memory

# cuda.h: CUdevice_attribute
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76
_INTEGRATED = 18

_NAME_BYTES = 256
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class CudaDevice:
    """One GPU: total memory in bytes, compute capability such as ``8.9``, the driver's version where it is known.

    ``unified`` means that processor and GPU share the memory; ``asked`` is ``cuda_driver`` or ``nvml``.
    """

    name: str
    memory_bytes: int
    compute_capability: str
    unified: bool
    driver: str | None
    asked: str


def first_cuda_device(
    load_cuda: Callable[[], Any] | None = None, load_nvml: Callable[[], Any] | None = None
) -> CudaDevice | None:
    """Return the first GPU that a runtime would use, or None when there is none or nobody can tell.

    ``load_cuda`` and ``load_nvml`` return the two libraries and raise OSError or ImportError where they are missing.
    """
    nvml = _Nvml.open(load_nvml or _load_nvml)
    try:
        device = _from_cuda(load_cuda or _load_cuda, nvml) or (nvml.device() if nvml else None)
    finally:
        if nvml:
            nvml.close()
    return device


def _load_cuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _load_nvml() -> Any:
    import pynvml

    return pynvml


def _from_cuda(load: Callable[[], Any], nvml: _Nvml | None) -> CudaDevice | None:
    try:
        cuda = load()
    except OSError:
        return None
    device, total, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(_NAME_BYTES)
    if (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        or cuda.cuDeviceGetName(name, _NAME_BYTES, device)
    ):
        return None
    values = [
        _attribute(cuda, device, number)
        for number in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR, _INTEGRATED)
    ]
    major, minor, integrated = values
    if major is None or minor is None:
        return None
    unified = bool(integrated)
    return CudaDevice(
        name=name.value.decode("utf-8", errors="replace"),
        memory_bytes=_shared_memory(total.value) if unified else total.value,
        compute_capability=f"{major}.{minor}",
        unified=unified,
        driver=(nvml.driver() if nvml else None) or _kernel_module_version(),
        asked="cuda_driver",
    )


def _attribute(cuda: Any, device: ctypes.c_int, number: int) -> int | None:
    value = ctypes.c_int()
    return None if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) else value.value


def _shared_memory(device_bytes: int) -> int:
    """Return what is left of memory shared with the processor when a control group bounds this process."""
    host_bytes = total_host_memory()
    return device_bytes if host_bytes is None else min(device_bytes, host_bytes)


def _kernel_module_version() -> str | None:
    try:
        text = _KERNEL_MODULE.read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


class _Nvml:
    """An open NVML session."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @staticmethod
    def open(load: Callable[[], Any]) -> _Nvml | None:
        """Return a session, or None where there is no library or no driver."""
        try:
            library = load()
        except (ImportError, OSError):
            return None
        try:
            library.nvmlInit()
        except library.NVMLError:
            return None
        return _Nvml(library)

    def driver(self) -> str | None:
        """Return the driver's version."""
        try:
            return _text(self._library.nvmlSystemGetDriverVersion())
        except self._library.NVMLError:
            return None

    def device(self) -> CudaDevice | None:
        """Return the first device; NVML has no memory figure for some integrated ones, whose memory is the host's."""
        library = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(0)
            name = _text(library.nvmlDeviceGetName(handle))
            major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
        except library.NVMLError:
            return None
        try:
            total, unified = int(library.nvmlDeviceGetMemoryInfo(handle).total), False
        except library.NVMLError_NotSupported:
            host_bytes = total_host_memory()
            if host_bytes is None:
                return None
            total, unified = host_bytes, True
        except library.NVMLError:
            return None
        return CudaDevice(name, total, f"{major}.{minor}", unified, self.driver(), "nvml")

    def close(self) -> None:
        """End the session."""
        self._library.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
