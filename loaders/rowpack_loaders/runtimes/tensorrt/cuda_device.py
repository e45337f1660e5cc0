"""A CUDA device through cuda-python (package cuda-bindings): memory, one stream, graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import runtime as cudart

from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError, DeviceMemoryError

_NON_BLOCKING = 1  # cudaStreamNonBlocking: the stream does not wait for the legacy default stream


class CudaDevice:
    """Device ``index`` with a stream of its own; see :class:`.interfaces.Device`."""

    def __init__(self, index: int = 0) -> None:
        _call(cudart.cudaSetDevice, index)
        properties = _call(cudart.cudaGetDeviceProperties, index)
        self.index = index
        self.name: str = properties.name.split(b"\0")[0].decode("utf-8", errors="replace")
        self.compute_capability = f"{properties.major}.{properties.minor}"
        self._stream = _call(cudart.cudaStreamCreateWithFlags, _NON_BLOCKING)

    @property
    def stream(self) -> int:
        """The stream's handle."""
        return int(self._stream)

    def activate(self) -> None:
        """Make this the calling thread's device."""
        _call(cudart.cudaSetDevice, self.index)

    def free_bytes(self) -> int:
        """Return how much memory can still be allocated."""
        free, _ = _call(cudart.cudaMemGetInfo)
        return int(free)

    def allocate(self, byte_count: int) -> int:
        """Return the address of new memory; the driver aligns it to 256 bytes or more."""
        return int(_call(cudart.cudaMalloc, max(byte_count, 1)))

    def free(self, address: int) -> None:
        """Give memory back."""
        _call(cudart.cudaFree, address)

    def allocate_pinned(self, byte_count: int) -> CudaPinnedMemory:
        """Return new pinned host memory."""
        return CudaPinnedMemory(int(_call(cudart.cudaMallocHost, max(byte_count, 1))), byte_count)

    def upload(self, target: int, source: memoryview) -> None:
        """Copy host bytes to the device."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        _call(cudart.cudaMemcpyAsync, target, _address_of(source), source.nbytes, kind, self._stream)

    def download(self, target: memoryview, source: int) -> None:
        """Copy device bytes to the host."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        _call(cudart.cudaMemcpyAsync, _address_of(target), source, target.nbytes, kind, self._stream)

    def copy(self, target: int, source: int, byte_count: int) -> None:
        """Copy bytes on the device."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        _call(cudart.cudaMemcpyAsync, target, source, byte_count, kind, self._stream)

    def zero(self, target: int, byte_count: int) -> None:
        """Fill bytes with zeros."""
        _call(cudart.cudaMemsetAsync, target, 0, byte_count, self._stream)

    def synchronize(self) -> None:
        """Wait until all work on the stream is done."""
        _call(cudart.cudaStreamSynchronize, self._stream)

    def capture(self, work: Callable[[], None]) -> CudaGraph:
        """Record what ``work`` puts on the stream."""
        # Relaxed: memory of other sequences may be freed meanwhile, by whichever thread drops them.
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        _call(cudart.cudaStreamBeginCapture, self._stream, mode)
        try:
            work()
        except BaseException:
            cudart.cudaStreamEndCapture(self._stream)
            raise
        graph = _call(cudart.cudaStreamEndCapture, self._stream)
        try:
            return CudaGraph(_call(cudart.cudaGraphInstantiate, graph, 0), self._stream)
        finally:
            _call(cudart.cudaGraphDestroy, graph)

    def close(self) -> None:
        """Give the stream back."""
        _call(cudart.cudaStreamDestroy, self._stream)


class CudaPinnedMemory:
    """Pinned host memory."""

    def __init__(self, address: int, byte_count: int) -> None:
        self._address = address
        self._bytes = (ctypes.c_ubyte * byte_count).from_address(address)

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self._bytes).cast("B")

    def free(self) -> None:
        """Give it back."""
        _call(cudart.cudaFreeHost, self._address)


class CudaGraph:
    """An instantiated graph."""

    def __init__(self, executable: Any, stream: Any) -> None:
        self._executable = executable
        self._stream = stream

    def launch(self) -> None:
        """Put the work on the stream."""
        _call(cudart.cudaGraphLaunch, self._executable, self._stream)

    def destroy(self) -> None:
        """Free it."""
        _call(cudart.cudaGraphExecDestroy, self._executable)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the CUDA runtime; return what it gives beside the status, and raise for a bad one."""
    status, *values = function(*arguments)
    if status != cudart.cudaError_t.cudaSuccess:
        _, name = cudart.cudaGetErrorName(status)
        _, text = cudart.cudaGetErrorString(status)
        kind = DeviceMemoryError if status == cudart.cudaError_t.cudaErrorMemoryAllocation else DeviceError
        raise kind(f"{_text(name)}: {_text(text)} ({function.__name__})")
    return values[0] if len(values) == 1 else tuple(values)


def _text(value: bytes | str | None) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _address_of(view: memoryview) -> int:
    """Return where the bytes of a buffer lie, writable or not."""
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)
