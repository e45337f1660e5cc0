"""What a build may ask of the compiler behind a backend; each backend says which of it it takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

DEFAULT_WORKSPACE_BYTES = 2**30
"""Scratch memory a compiled engine may plan with: ample for the largest chunk of any published size."""


PlanEncoding = Literal["raw", "shared"]


@dataclass(frozen=True)
class EngineOptions:
    """Choices for compiling backends; what is left out takes the backend's default.

    ``compute_capabilities`` are CUDA compute capabilities such as ``8.9``. ``hardware_compatibility`` and
    ``version_compatible`` widen what a plan of full TensorRT runs on. ``workspace_bytes`` bounds its scratch memory.
    ``plan_encoding`` says whether the second plan of a pair is stored ``raw`` or as extents over the first
    (``shared``). ``timing_cache`` is a file of measured kernel times that is read when it is there, and written.
    """

    compute_capabilities: tuple[str, ...] = ()
    hardware_compatibility: str | None = None
    version_compatible: bool = False
    workspace_bytes: int | None = None
    timing_cache: Path | None = None
    plan_encoding: PlanEncoding | None = None

    def as_json(self) -> dict[str, object]:
        """Return the choices for the record of a build; where files lay does not belong to it."""
        return {
            "compute_capabilities": list(self.compute_capabilities),
            "hardware_compatibility": self.hardware_compatibility,
            "version_compatible": self.version_compatible,
            "workspace_bytes": self.workspace_bytes,
            "plan_encoding": self.plan_encoding,
        }

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that were given, as fields."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)


NO_OPTIONS = EngineOptions()


def option_flag(name: str) -> str:
    """Return the command line's spelling of an option."""
    flag = {"compute_capabilities": "compute_capability", "workspace_bytes": "workspace"}.get(name, name)
    return "--" + flag.replace("_", "-")
