"""A CUDA device that is none: memory in bytearrays, and a stream that does its work as late as it may.

Work put on the stream is done when the stream is synchronised and not before, on the host memory as it then is: a
runtime that reuses a buffer too early, or reads a result too early, gets wrong values here. Every address is checked to
lie in living memory, and calls of a thread that did not activate the device are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rowpack_loaders.runtimes.tensorrt.interfaces import DeviceError, DeviceMemoryError

ALIGNMENT = 256
Work = Callable[[], None]


class RuleError(AssertionError):
    """The runtime broke a rule of the library."""


def require(condition: object, rule: str) -> None:
    """Refuse what a real device or library would refuse, or worse, accept."""
    if not condition:
        raise RuleError(rule)


class RecordingGraph:
    """Recorded work."""

    def __init__(self, device: RecordingDevice, work: list[Work]) -> None:
        self._device, self._work, self.alive = device, work, True

    def launch(self) -> None:
        require(self.alive, "a destroyed graph is not launched")
        self._device.log.append("launch")
        for work in self._work:
            self._device.enqueue(work)

    def destroy(self) -> None:
        require(not self._device.pending, "a graph is destroyed when the stream is idle")
        self.alive = False
        self._device.living_graphs -= 1


class RecordingPinned:
    """Pinned memory."""

    def __init__(self, device: RecordingDevice, byte_count: int) -> None:
        self._device = device
        self._data = bytearray(byte_count)

    @property
    def view(self) -> memoryview:
        return memoryview(self._data)

    def free(self) -> None:
        self._device.pinned_blocks -= 1


class RecordingDevice:
    """One pretended GPU; ``log`` holds what was put on its stream, ``faults`` what is to go wrong."""

    stream = 7

    def __init__(self, total_bytes: int = 2**30) -> None:
        self.name, self.compute_capability = "NVIDIA Pretended 1", "8.9"
        self.total_bytes = total_bytes
        self.memory: dict[int, bytearray] = {}
        self.pending: list[Work] = []
        self.recording: list[Work] | None = None
        self.log: list[str] = []
        self.pinned_blocks = self.living_graphs = 0
        self.fails_to_record = False
        self.fails_at_next_synchronisation = False
        self.closed = False
        self._next_address = 2**32
        self._active = threading.local()

    def activate(self) -> None:
        self._active.yes = True

    def free_bytes(self) -> int:
        self._require_active()
        return self.total_bytes - sum(map(len, self.memory.values()))

    def allocate(self, byte_count: int) -> int:
        self._require_active()
        if byte_count > self.free_bytes():
            raise DeviceMemoryError("cudaErrorMemoryAllocation: out of memory (cudaMalloc)")
        address = self._next_address
        # Addresses are never used twice, and ranges never touch: every stray access is seen.
        self._next_address += -(-byte_count // ALIGNMENT) * ALIGNMENT + 16 * ALIGNMENT
        self.memory[address] = bytearray(b"\xcd" * byte_count)
        return address

    def free(self, address: int) -> None:
        require(address in self.memory, "memory is freed once, by its address")
        require(not self.pending, "memory is freed when no work can use it")
        del self.memory[address]

    def allocate_pinned(self, byte_count: int) -> RecordingPinned:
        self._require_active()
        self.pinned_blocks += 1
        return RecordingPinned(self, byte_count)

    def at(self, address: int, byte_count: int) -> memoryview:
        """Return living device memory, or refuse."""
        for start, data in self.memory.items():
            if start <= address and address + byte_count <= start + len(data):
                return memoryview(data)[address - start : address - start + byte_count]
        raise RuleError(f"{byte_count} bytes at {address:#x} lie in no allocation")

    def upload(self, target: int, source: memoryview) -> None:
        self._put("upload", target, source.nbytes, lambda: self._store(target, source))

    def download(self, target: memoryview, source: int) -> None:
        def work() -> None:
            target[:] = self.at(source, target.nbytes)

        self._put("download", source, target.nbytes, work)

    def copy(self, target: int, source: int, byte_count: int) -> None:
        require(abs(target - source) >= byte_count, "copied ranges do not overlap")
        self.at(source, byte_count)
        self._put("copy", target, byte_count, lambda: self._store(target, self.at(source, byte_count)))

    def zero(self, target: int, byte_count: int) -> None:
        self._put("zero", target, byte_count, lambda: self._store(target, memoryview(bytes(byte_count))))

    def synchronize(self) -> None:
        self._require_active()
        require(self.recording is None, "a recording is not synchronised")
        work, self.pending = self.pending, []
        if self.fails_at_next_synchronisation:
            self.fails_at_next_synchronisation = False
            raise DeviceError("cudaErrorIllegalAddress: an illegal memory access was encountered")
        for one in work:
            one()

    def capture(self, work: Work) -> RecordingGraph:
        self._require_active()
        require(self.recording is None, "one recording at a time")
        self.recording = []
        try:
            work()
            if self.fails_to_record:
                raise DeviceError("cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing")
            self.living_graphs += 1
            return RecordingGraph(self, self.recording)
        finally:
            self.recording = None

    def close(self) -> None:
        self.closed = True

    def enqueue(self, work: Work) -> None:
        """Put work on the stream, or into the recording."""
        self._require_active()
        (self.pending if self.recording is None else self.recording).append(work)

    def _put(self, kind: str, address: int, byte_count: int, work: Work) -> None:
        self.at(address, byte_count)
        self.log.append(kind)
        self.enqueue(work)

    def _store(self, target: int, data: Any) -> None:
        self.at(target, len(data))[:] = data

    def _require_active(self) -> None:
        require(getattr(self._active, "yes", False), "a thread activates the device before it uses it")
