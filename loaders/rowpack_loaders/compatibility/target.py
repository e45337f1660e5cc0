"""Describe the machine a bundle is to run on, as far as it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_SYSTEMS = {"win32": "windows", "win": "windows", "darwin": "macos"}


@dataclass(frozen=True)
class Target:
    """What is known of a machine; ``None`` means that nobody said.

    ``cpu_features`` are the processor's instruction sets by Linux' names (``avx512_bf16``). ``compute_capability`` is
    the GPU's, such as ``8.9``; ``has_gpu`` is False where there is known to be none. ``runtimes`` maps backends
    (``ort``, ``openvino``, ``trt``, ``trt_rtx``) to the installed versions; with ``runtimes_complete`` a backend that
    is not listed is known not to be installed. ``device_memory_bytes`` is the GPU's memory, ``host_memory_bytes`` the
    processor's.
    """

    os: str | None = None
    arch: str | None = None
    cpu_features: frozenset[str] | None = None
    compute_capability: str | None = None
    has_gpu: bool | None = None
    driver: str | None = None
    device_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    runtimes: Mapping[str, str] = field(default_factory=dict)
    runtimes_complete: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the target as the report tells it."""
        return {
            "os": self.os,
            "arch": self.arch,
            "cpu_features": None if self.cpu_features is None else sorted(self.cpu_features),
            "sm": self.compute_capability,
            "has_gpu": self.has_gpu,
            "driver": self.driver,
            "device_memory_bytes": self.device_memory_bytes,
            "host_memory_bytes": self.host_memory_bytes,
            "runtimes": dict(self.runtimes),
        }


def normal_arch(name: str) -> str:
    """Return the architecture as manifests spell it: ``x86_64`` for ``AMD64``."""
    lowered = name.strip().lower()
    return _ARCHITECTURES.get(lowered, lowered)


def normal_os(name: str) -> str:
    """Return the operating system as manifests spell it: ``windows`` for ``win32``."""
    lowered = name.strip().lower()
    return _SYSTEMS.get(lowered, lowered)


def normal_compute_capability(text: str) -> str | None:
    """Return ``8.9`` for ``8.9``, ``89``, ``sm89`` or ``SM_89``, and None for what is no compute capability."""
    match = re.fullmatch(r"(?:sm_?)?(\d{1,2})\.?(\d)", text.strip().lower())
    return f"{match[1]}.{match[2]}" if match else None


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``(1, 7, 1, 116)``, without what follows them (``+cu13``, ``rc1``)."""
    match = re.match(r"\d{1,9}(?:\.\d{1,9})*", text.strip())
    return tuple(map(int, match[0].split("."))) if match else ()
