"""Choose how long an idle worker thread spins before it sleeps.

A worker that spins starts the next product at once, but holds its core while it waits. On cores that nobody else uses
that is the faster way. Where other programs run, it takes the core from the very thread that it waits for: among six
busy programs on two cores, taken in turns, a step of a small model took 45 ms with long spinning and 24 ms with short.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.host import usable_core_count

ThreadWait = Literal["auto", "spin", "sleep"]
THREAD_WAITS: tuple[ThreadWait, ...] = ("auto", "spin", "sleep")

SPIN_US = 1000
"""From one engine call to the next, as ONNX Runtime itself does."""

SLEEP_AFTER_US = 20
"""From one product to the next, and no longer."""

_LOAD = Path("/proc/loadavg")
_SAMPLES = 3  # the middle one counts, so that a task of a moment is not taken for a busy machine
_PAUSE_S = 0.001


def spin_duration_us(wait: ThreadWait, thread_count: int, core_count: int, others: int | None) -> int:
    """Return how long ``thread_count`` threads spin on ``core_count`` usable cores beside ``others`` running tasks.

    ``auto`` spins long only where every thread has a core for itself; None, an unknown number of others, is taken for
    a busy machine.
    """
    if wait == "auto":
        wait = "spin" if others is not None and others + thread_count <= core_count else "sleep"
    return SPIN_US if wait == "spin" else SLEEP_AFTER_US


def chosen_spin_us(wait: ThreadWait, thread_count: int) -> int:
    """Return :func:`spin_duration_us` on this machine as it is now; raises ``thread_wait_unknown``."""
    if wait not in THREAD_WAITS:
        raise RowpackError(
            "thread_wait_unknown",
            "The way for threads to wait is unknown",
            found=repr(wait)[:80],
            expected=" or ".join(THREAD_WAITS),
        )
    others = running_elsewhere() if wait == "auto" else None
    return spin_duration_us(wait, thread_count, usable_core_count(), others)


def running_elsewhere(load: Path = _LOAD) -> int | None:
    """Return how many tasks of the machine run or wait for a core beside the calling thread; None where it is not told.

    Linux tells it, of the whole machine: a process that may use a part of it counts the others on all of it.
    """
    counts = []
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_PAUSE_S)
        count = _running(load)
        if count is None:
            return None
        counts.append(count)
    return max(0, sorted(counts)[len(counts) // 2] - 1)


def _running(load: Path) -> int | None:
    """Return the number before the slash of the fourth word, "2/345"."""
    try:
        words = load.read_text(encoding="ascii").split()
        return int(words[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None
