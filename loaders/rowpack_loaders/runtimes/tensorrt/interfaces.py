"""What the runtime needs of a CUDA device and of a TensorRT library; nothing here knows either.

Addresses are device addresses. All work of a device goes to its one stream, in order; what is uploaded must stay as it
is, and what is downloaded must not be looked at, until :meth:`Device.synchronize` has returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rowpack_loaders.section_content import SectionContent


class DeviceError(Exception):
    """A call into a library failed; the message is the library's own."""


class DeviceMemoryError(DeviceError):
    """The device has no memory left for what was asked."""


class Graph(Protocol):
    """Captured work that can be launched again and again."""

    def launch(self) -> None:
        """Put the work on the stream; raises :class:`DeviceError`."""
        ...

    def destroy(self) -> None:
        """Free it; the stream must be idle."""
        ...


class PinnedMemory(Protocol):
    """Host memory that the device reads and writes without the processor's help."""

    @property
    def view(self) -> memoryview:
        """Its bytes, writable."""
        ...

    def free(self) -> None:
        """Give it back."""
        ...


class Device(Protocol):
    """One GPU with one stream."""

    name: str
    compute_capability: str

    @property
    def stream(self) -> int:
        """The stream's handle, as the library takes it."""
        ...

    def activate(self) -> None:
        """Make this the calling thread's device; every other call but :meth:`free` comes after it."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory can still be allocated."""
        ...

    def allocate(self, byte_count: int) -> int:
        """Return the address of new memory, on a multiple of 256 bytes; raises :class:`DeviceMemoryError`."""
        ...

    def free(self, address: int) -> None:
        """Give memory back; no work on the stream may use it any more."""
        ...

    def allocate_pinned(self, byte_count: int) -> PinnedMemory:
        """Return new pinned host memory; raises :class:`DeviceMemoryError`."""
        ...

    def upload(self, target: int, source: memoryview) -> None:
        """Copy host bytes to the device."""
        ...

    def download(self, target: memoryview, source: int) -> None:
        """Copy device bytes to the host."""
        ...

    def copy(self, target: int, source: int, byte_count: int) -> None:
        """Copy bytes on the device; the ranges must not overlap."""
        ...

    def zero(self, target: int, byte_count: int) -> None:
        """Fill bytes with zeros."""
        ...

    def synchronize(self) -> None:
        """Wait until all work on the stream is done; raises :class:`DeviceError` for what went wrong in it."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record what ``work`` puts on the stream instead of doing it; raises :class:`DeviceError`."""
        ...

    def close(self) -> None:
        """Give the stream back."""
        ...


@dataclass(frozen=True)
class PlanTensor:
    """One input or output of an engine as the library tells it: −1 is a free extent.

    ``profile`` holds the smallest and the largest shape of an input with free extents.
    """

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    profile: tuple[tuple[int, ...], tuple[int, ...]] | None


class PlanContext(Protocol):
    """An engine with the memory it works in; runs one thing at a time."""

    def set_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Say how large an input with free extents is this time; raises :class:`DeviceError`."""
        ...

    def set_address(self, name: str, address: int) -> None:
        """Say where an input or output lies; raises :class:`DeviceError`."""
        ...

    def execute(self) -> None:
        """Put a run on the device's stream; raises :class:`DeviceError`."""
        ...

    def can_be_captured(self) -> bool:
        """Whether a run with the shapes that are set may be recorded as a graph."""
        ...


class PlanEngine(Protocol):
    """A loaded plan."""

    tensors: tuple[PlanTensor, ...]

    def create_context(self) -> PlanContext:
        """Return a context with its memory; raises :class:`DeviceMemoryError`."""
        ...


class Library(Protocol):
    """The TensorRT library of one flavour over one device."""

    version: str

    def load_engine(self, plan: SectionContent) -> PlanEngine:
        """Deserialise a plan; raises :class:`DeviceMemoryError` or :class:`DeviceError` with what the library says."""
        ...

    def keep_compiled(self) -> None:
        """Write what was compiled for this device, where there is a cache for it; a cache that fails is no error."""
        ...
