"""Ask the host what a process may use: cores, and the processor's name (memory: host_memory).

A container or a CPU affinity mask often grants less than the machine has; a thread pool sized after the
machine then fights itself. Every function answers from the narrowest limit it can see.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

_CGROUP_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_PROCESSOR_TABLE = Path("/proc/cpuinfo")
_PROCESSORS = Path("/sys/devices/system/cpu")


def usable_core_count() -> int:
    """Return the physical cores that this process may use, at least 1.

    Two hardware threads of one core count once: matrix products gain nothing from the second. The affinity
    mask and a control group's CPU quota both narrow the count.
    """
    logical = _allowed_processors()
    cores = {_physical_core(processor) for processor in logical}
    return max(1, min(len(cores), _quota_in_cores() or len(cores)))


def processor_name() -> str:
    """Return the processor's marketing name, or what the platform knows instead."""
    for line in _read_text(_PROCESSOR_TABLE).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def _allowed_processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _physical_core(processor: int) -> tuple[str, str] | int:
    topology = _PROCESSORS / f"cpu{processor}" / "topology"
    package, core = _read_text(topology / "physical_package_id"), _read_text(topology / "core_id")
    return (package, core) if package and core else processor


def _quota_in_cores() -> int | None:
    quota, _, period = _read_text(_CGROUP_CPU_QUOTA).partition(" ")
    if not quota.isdigit() or not period.strip().isdigit():
        return None
    return max(1, math.ceil(int(quota) / int(period)))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
