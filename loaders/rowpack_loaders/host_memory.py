"""Ask the operating system how much memory there is and how much this process holds.

Containers see the memory of their whole machine in ``/proc/meminfo``; their own limit is that of their
control group, or of any group above it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class ProcessMemory:
    """Give the resident memory of a process: anonymous, backed by files, and the most it ever was in
    all."""

    anonymous_bytes: int
    file_bytes: int
    peak_resident_bytes: int


@dataclass(frozen=True)
class _CgroupMemory:
    """Name a control group's limit and its use without file pages that the kernel gives back on demand."""

    limit_bytes: int
    used_bytes: int


def total_host_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes this process could ever use: physical memory or a smaller control-group limit.

    Returns ``None`` where the system does not say. ``root`` is the root of the file system to ask.
    """
    physical_bytes = _read_fields(root / "proc/meminfo").get("MemTotal")
    if physical_bytes is None:
        physical_bytes = _sysconf_memory()
    limits = [group.limit_bytes for group in _cgroups(root)]
    known = [*limits, physical_bytes] if physical_bytes is not None else limits
    return min(known, default=None)


def available_host_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes this process could use now without others giving up theirs, or ``None`` if unknown."""
    available_bytes = _read_fields(root / "proc/meminfo").get("MemAvailable")
    rooms = [max(0, group.limit_bytes - group.used_bytes) for group in _cgroups(root)]
    known = [*rooms, available_bytes] if available_bytes is not None else rooms
    return min(known, default=None)


def process_memory(root: Path = Path("/"), *, process_id: int | None = None) -> ProcessMemory | None:
    """Return the resident memory of this or another process, or ``None`` where the system does not say."""
    fields = _read_fields(root / "proc" / (str(process_id) if process_id else "self") / "status")
    try:
        return ProcessMemory(fields["RssAnon"], fields["RssFile"], fields["VmHWM"])
    except KeyError:
        return None


def _read_fields(path: Path) -> dict[str, int]:
    """Read lines such as ``MemTotal:  24500000 kB`` as bytes by name; nothing when there is no such file."""
    return {name: int(kibibytes) * 1024 for name, kibibytes in _FIELD.findall(_read(path) or "")}


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return None


def _sysconf_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroups(root: Path) -> list[_CgroupMemory]:
    """Return the limited memory groups around this process, of both versions of control groups."""
    groups = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = Path(group.strip("/"))
        for ancestor in (folder, *folder.parents):
            groups += _read_group(base / ancestor, *names)
    return groups


def _read_group(folder: Path, limit_name: str, use_name: str, reclaimable_name: str) -> list[_CgroupMemory]:
    limit_bytes = _read_number(folder / limit_name)
    if limit_bytes is None:
        return []
    statistics = _read(folder / "memory.stat") or ""
    reclaimable = re.search(rf"^{reclaimable_name} (\d+)$", statistics, re.MULTILINE)
    used_bytes = (_read_number(folder / use_name) or 0) - (int(reclaimable[1]) if reclaimable else 0)
    return [_CgroupMemory(limit_bytes, max(0, used_bytes))]


def _read_number(path: Path) -> int | None:
    """Read a whole number; ``max``, the word for no limit, is none."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None
