"""What a build tells when it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack.engines.backend import Executed
from rowpack.host_need import HostMemoryNeed
from rowpack.progress import FinishedStage
from rowpack_loaders.compatibility.memory_need import MemoryNeed
from rowpack_loaders.errors import Problem


@dataclass(frozen=True)
class HostMemoryUse:
    """What a build was expected to take of this machine's memory, and what it took.

    ``peak_anonymous_bytes`` is the most that this process and a compiler's process held together of memory that the
    system cannot take back; None where the system does not say.
    """

    need: HostMemoryNeed
    available_bytes: int | None
    peak_anonymous_bytes: int | None

    def as_json(self) -> dict[str, object]:
        """Return the record of the build report."""
        return {
            "estimated_bytes": self.need.byte_count,
            "estimated_stage_bytes": dict(self.need.stages),
            "available_bytes": self.available_bytes,
            "peak_anonymous_bytes": self.peak_anonymous_bytes,
        }


@dataclass(frozen=True)
class BuildReport:
    """What a build made: the file, its digests, the decision, and what each stage took."""

    path: Path
    file_bytes: int
    decoder_engine_layout: str
    layout_decision: dict[str, Any]
    content_digest: str
    file_digest: str
    worst_relative_error: dict[str, float]
    engine_builds: dict[str, dict[str, object]]
    """What compiling each engine took, by role; empty where nothing is compiled."""
    executed: Executed | None
    """What the smoke run executed: the engines, or the graphs they were compiled from; None without one."""
    memory: MemoryNeed
    """What a loader takes of its device's memory for one full sequence."""
    host_memory: HostMemoryUse
    stages: tuple[FinishedStage, ...]
    warnings: tuple[Problem, ...]

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack build --json`` prints."""
        return {
            "path": str(self.path),
            "file_bytes": self.file_bytes,
            "decoder_engine_layout": self.decoder_engine_layout,
            "layout_decision": self.layout_decision,
            "content_digest": self.content_digest,
            "file_digest": self.file_digest,
            "worst_relative_error": self.worst_relative_error,
            "engine_builds": self.engine_builds,
            "executed": self.executed,
            "memory": self.memory.as_json(),
            "host_memory": self.host_memory.as_json(),
            "stages": [stage.as_json() for stage in self.stages],
            "warnings": [warning.as_json() for warning in self.warnings],
        }
