"""Pause Python's collection of reference cycles for a moment.

A load makes some ten thousand objects and no garbage, and a process that has imported numpy has several times as many:
collections in between take an eighth of the load (docs/benchmarks.md).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collection() -> Iterator[None]:
    """Collect nothing meanwhile, in any thread of the process; a collection that was off before stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
