"""Say what the figures were measured on: processor, cores, memory, load, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path

FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""Instructions that decide how fast narrow types are, as ``/proc/cpuinfo`` names them."""


def processor_name(cpuinfo: str) -> str:
    """Return the model name in the text of ``/proc/cpuinfo``."""
    names = (line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def processor_features(cpuinfo: str) -> list[str]:
    """Return which of ``FEATURES`` the processor has."""
    flags = next((line.split(":", 1)[1].split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return [name for name in FEATURES if name in flags]


def read_cpuinfo() -> str:
    """Return ``/proc/cpuinfo``, empty where there is none."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def describe_machine(threads: int | None, versions: Mapping[str, str]) -> str:
    """Return one sentence for the head of a table. Take it when the measuring begins: it holds the load average."""
    cpuinfo = read_cpuinfo()
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    used = "" if threads is None else f"{threads} threads used, "
    software = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return (
        f"{processor_name(cpuinfo)} ({', '.join(processor_features(cpuinfo)) or 'no features named'}), "
        f"{cores()}, {memory_gb:.0f} GB, {used}load average {os.getloadavg()[0]:.1f} "
        f"before; Python {platform.python_version()}{', ' if software else ''}{software}"
    )


def short_name() -> str:
    """Return processor and cores, for the title of a picture."""
    return f"{processor_name(read_cpuinfo())}, {cores()}"


def cores() -> str:
    """Return how many cores this process may use, and of how many where they are fewer (``taskset``, containers)."""
    whole = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else whole
    return f"{usable} cores" if usable == whole else f"{usable} of {whole} cores"


def rowpack_version() -> dict[str, str]:
    """Return the version of rowpack in this environment and of the runtime it uses."""
    found = {}
    for name in ("rowpack", "onnxruntime", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "rowpack" not in found:
        # A source tree on PYTHONPATH has no metadata.
        from rowpack_loaders.version import __version__

        found["rowpack"] = __version__
    return found
