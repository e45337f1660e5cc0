"""Read what a process holds, from ``/proc``, without any package: the peers' environments have none of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ResidentMemory:
    """Give a process's resident memory: its own, pages of mapped files (shared with all who map them), and the most
    that both were together."""

    anonymous_bytes: int
    mapped_bytes: int
    peak_bytes: int


def read_resident_memory(process_id: int | None = None, root: Path = Path("/proc")) -> ResidentMemory | None:
    """Return the memory of this or another process; None once it has ended."""
    try:
        text = (root / str(process_id or "self") / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = {line.split(":")[0]: line.split() for line in text.splitlines() if line.endswith(" kB")}
    try:
        anonymous, mapped, peak = (int(fields[name][1]) * 1024 for name in ("RssAnon", "RssFile", "VmHWM"))
    except KeyError:
        return None
    return ResidentMemory(anonymous, mapped, peak)
