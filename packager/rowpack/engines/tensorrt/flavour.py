"""The two libraries that one adapter drives, and everything in which they differ."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Flavour:
    """One library: how it is found, what it needs, and what its builder can be asked for.

    ``compiles_for_chosen_capabilities``: plans are made for the compute capabilities that are named, without a GPU;
    otherwise for the GPU they are built on. ``hardware_levels`` maps our words to the library's. ``portable_systems``:
    operating systems a plan runs on, wherever it was built; empty means the one it was built on.
    ``takes_free_rows_of_fp4``: products of FP4 weights compile for a free row count.
    """

    backend: str
    product: str
    modules: tuple[str, ...]
    extra: str
    minimum_version: tuple[int, int]
    compiles_for_chosen_capabilities: bool
    hardware_levels: dict[str, str]
    version_compatible: bool
    timing_cache: bool
    portable_systems: tuple[str, ...]
    takes_free_rows_of_fp4: bool

    def systems(self) -> list[str]:
        """Return the operating systems that a plan built here runs on."""
        return list(self.portable_systems) or [platform.system().lower()]


TENSORRT = Flavour(
    backend="trt",
    product="TensorRT",
    modules=("tensorrt", "tensorrt_bindings"),
    extra="trt",
    minimum_version=(11, 0),
    compiles_for_chosen_capabilities=False,
    hardware_levels={"ampere_plus": "AMPERE_PLUS", "same_compute_capability": "SAME_COMPUTE_CAPABILITY"},
    version_compatible=True,
    timing_cache=True,
    portable_systems=(),
    takes_free_rows_of_fp4=False,
)

TENSORRT_RTX = Flavour(
    backend="trt_rtx",
    product="TensorRT for RTX",
    modules=("tensorrt_rtx", "tensorrt_rtx_bindings"),
    extra="trt-rtx",
    minimum_version=(1, 7),
    compiles_for_chosen_capabilities=True,
    hardware_levels={},
    version_compatible=False,
    timing_cache=False,
    # NVIDIA's manual, "CPU-Only AOT": an engine is portable to both systems with any supported device.
    portable_systems=("linux", "windows"),
    takes_free_rows_of_fp4=True,
)

OLDEST_DEFAULT_CAPABILITY = 80
"""Compute capability 8.0. Turing (7.5) must be asked for: it has no float32 products in this compiler."""

OLDEST_QUANTIZED_CAPABILITIES = {"fp8": 89, "nvfp4": 100}
"""The oldest GPUs with products in a quantised type (NVIDIA's support matrices); the compiler refuses older ones."""


def capability_of(member: str) -> str:
    """Return ``8.9`` for the library's ``SM89``."""
    digits = member.removeprefix("SM")
    return f"{digits[:-1]}.{digits[-1]}"


def member_of(capability: str) -> str:
    """Return the library's ``SM89`` for ``8.9``."""
    return "SM" + capability.replace(".", "")


def default_capabilities(members: list[str], quantization: str | None = None) -> list[str]:
    """Return every capability the library knows but the ones that must be asked for or cannot run the type."""
    oldest = OLDEST_DEFAULT_CAPABILITY if quantization is None else OLDEST_QUANTIZED_CAPABILITIES[quantization]
    numbers = sorted(int(member.removeprefix("SM")) for member in members)
    return [capability_of(f"SM{number}") for number in numbers if number >= oldest]


def too_old_for(quantization: str, capabilities: tuple[str, ...]) -> list[str]:
    """Return the capabilities without products in the quantised type."""
    oldest = OLDEST_QUANTIZED_CAPABILITIES[quantization]
    return [capability for capability in capabilities if int(member_of(capability).removeprefix("SM")) < oldest]
