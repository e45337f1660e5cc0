"""How many threads a runtime on the processor computes with."""

from __future__ import annotations

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.host import usable_core_count
from rowpack_loaders.integers import as_integer


def computing_threads(thread_count: int | None) -> int:
    """Return ``thread_count``, or the physical cores this process may use; raises ``thread_count_invalid``."""
    if thread_count is None:
        return usable_core_count()
    if (as_integer(thread_count) or 0) < 1:
        raise RowpackError(
            "thread_count_invalid",
            "The number of threads is not positive",
            found=str(thread_count),
            expected="an integer from 1",
        )
    return thread_count
