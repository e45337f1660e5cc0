"""Measure the most memory that this process and its children hold while something runs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from rowpack_loaders.host_memory import process_memory

SAMPLE_SECONDS = 0.05


class MemorySampler:
    """A context manager; ``peak_anonymous_bytes`` is the largest sum seen, None where the system does not say.

    Anonymous memory is what counts against a limit: pages of mapped files are given back on demand. Children are the
    compilers' processes, which live for seconds or longer, so that sampling finds them.
    """

    def __init__(self) -> None:
        self.peak_anonymous_bytes: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> MemorySampler:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        own = process_memory()
        if own is None:
            return
        held = own.anonymous_bytes
        for process_id in _children():
            child = process_memory(process_id=process_id)
            held += 0 if child is None else child.anonymous_bytes
        self.peak_anonymous_bytes = max(held, self.peak_anonymous_bytes or 0)


def _children() -> list[int]:
    """Return the ids of the processes that any thread of this one started and that still live."""
    found = []
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text("ascii").split()]
        except (OSError, ValueError):
            continue
    return found
