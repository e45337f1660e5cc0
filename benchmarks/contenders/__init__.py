"""The contenders of the speed benchmarks: one module a runtime, each behind the same two calls.

A contender is a module with ``import_runtime()``, so that importing the library is timed apart from loading the model,
``load(request)``, which returns a :class:`Sequence`, and ``versions()``. Modules import their runtime inside functions:
the catalogue and the tests need none of them.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class LoadRequest:
    """What to load and how: ``choice`` is a runtime's own (a mode, a data type); ``library`` a folder of libraries."""

    source: Path
    choice: str
    threads: int
    cache_rows: int
    library: Path | None = None


class Sequence(Protocol):
    """One sequence on a loaded model. Both calls return the greedy next token, so logits are read in the time taken."""

    def prefill(self, token_ids: list[int]) -> int:
        """Start anew with a prompt."""

    def step(self, token_id: int) -> int:
        """Run one more row."""


def package_versions(*names: str) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
