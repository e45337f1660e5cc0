"""Tell that an engine is not the one that the manifest describes."""

from __future__ import annotations

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import EngineRecord


def engine_mismatch(engine: EngineRecord, what: str, found: str, expected: str) -> RowpackError:
    """Return the error for an engine whose inputs or outputs, by which buffers are sized, are not the manifest's."""
    return RowpackError(
        "engine_io_mismatch",
        f"The {engine.name} engine's {what} are not what the manifest says",
        where=engine.section,
        found=found[:300],
        expected=expected[:300],
        remedy="Build the bundle again",
    )
