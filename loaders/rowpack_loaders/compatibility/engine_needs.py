"""What one engine asks of a machine, read from its entry in the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields

ANY = "any"


@dataclass(frozen=True)
class EngineNeeds:
    """The needs of one engine; empty lists and None mean that the manifest asks for nothing there.

    ``hardware_compatibility`` and ``version_compatible`` widen what a plan of full TensorRT runs on (see
    docs/format.md, builder_flags).
    """

    role: str
    section: str
    backend: str
    backend_version: str
    systems: tuple[str, ...]
    architectures: tuple[str, ...]
    compute_capabilities: tuple[str, ...]
    cpu_features: tuple[str, ...]
    minimum_driver: str | None
    requires: tuple[str, ...]
    opset: int | None
    hardware_compatibility: str | None
    version_compatible: bool

    @property
    def needs_gpu(self) -> bool:
        """Whether the engine runs on a CUDA device."""
        return self.backend.startswith("trt") or bool(self.compute_capabilities)

    def pointer(self, key: str) -> str:
        """Return the place of a key of the entry."""
        return f"{MANIFEST_SECTION}#/engines/{self.role}/{key}"


def read_engine_needs(manifest: dict[str, object]) -> tuple[EngineNeeds, ...]:
    """Return the needs of every engine, decode first; raises ``manifest_malformed``."""
    engines = dict(Fields(manifest, "", MANIFEST_SECTION).members("engines"))
    return tuple(_read(role, engines[role]) for role in sorted(engines))


def _read(role: str, engine: Fields) -> EngineNeeds:
    target = engine.optional_child("target") or Fields(
        {"os": [], "arch": [], "cpu_features": [], "sm": []}, "", MANIFEST_SECTION
    )
    flags = engine.child("builder_flags").raw if "builder_flags" in engine.raw else {}
    level = flags.get("hardware_compatibility")
    return EngineNeeds(
        role=role,
        section=engine.text("section"),
        backend=engine.text("backend"),
        backend_version=engine.text("backend_version"),
        systems=target.texts("os"),
        architectures=target.texts("arch"),
        compute_capabilities=target.texts("sm"),
        cpu_features=target.texts("cpu_features"),
        minimum_driver=target.optional_text("minimum_driver"),
        requires=engine.texts("requires") if "requires" in engine.raw else (),
        opset=engine.optional_integer("opset"),
        hardware_compatibility=level if isinstance(level, str) and level != "none" else None,
        version_compatible=flags.get("version_compatible") is True,
    )
