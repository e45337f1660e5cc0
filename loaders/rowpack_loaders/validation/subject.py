"""What the rules look at, and what a rule is.

A rule is a function that takes the subject and yields what it finds. Rules of an early layer put on the
subject what later layers need: the open container, the parsed manifest, the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rowpack_loaders import manifest as records
from rowpack_loaders.container import Container
from rowpack_loaders.container_header import SectionRange
from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.onnx_interface import OnnxInterface
from rowpack_loaders.safetensors_header import TensorEntry

FIRST_READ_BYTES = 2**20
"""What a header-only check may read; the manifest of a good bundle ends inside it."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all while sections are digested."""


@dataclass(frozen=True)
class Warned:
    """A finding that does not make a bundle invalid."""

    problem: Problem


Finding = Problem | Warned
Rule = Callable[["Subject"], Iterable[Finding]]


@dataclass
class Subject:
    """One bundle under validation."""

    path: Path
    header_only: bool
    progress: Progress | None = None
    open_container: Container | None = None
    manifest_bytes: bytes | None = None
    parsed_manifest: dict[str, object] | None = None
    schema_understood: bool = False
    runtime_json: dict[str, object] | None = None
    section_sha256: dict[str, str] = field(default_factory=dict)
    weight_tensors: dict[str, TensorEntry] | None = None
    golden: object = None
    """The unpacked golden vectors, where they could be unpacked."""
    onnx_interfaces: dict[str, OnnxInterface] = field(default_factory=dict)
    """What the ONNX sections declare, by the use of the engine; those that could be read."""

    @property
    def container(self) -> Container:
        """The open container; only for rules of layers that need one."""
        if self.open_container is None:
            raise RuntimeError("this rule's layer must not run without a container")
        return self.open_container

    @property
    def manifest(self) -> dict[str, object]:
        """The parsed manifest; only for rules of layers that need one."""
        if self.parsed_manifest is None:
            raise RuntimeError("this rule's layer must not run without a manifest")
        return self.parsed_manifest

    @property
    def manifest_fields(self) -> Fields:
        """The manifest, to read typed fields from."""
        return Fields(self.manifest, "", MANIFEST_SECTION)

    @cached_property
    def layout(self) -> str:
        """The manifest's ``decoder_engine_layout``; like the records below, ``manifest_malformed`` where it is bad."""
        return records.read_layout(self.manifest, MANIFEST_SECTION)

    @cached_property
    def engines(self) -> dict[str, records.EngineRecord]:
        """The manifest's engines by use."""
        return records.read_engines(self.manifest, MANIFEST_SECTION)

    @cached_property
    def states(self) -> tuple[records.StateRecord, ...]:
        """The manifest's state table."""
        return records.read_states(self.manifest, MANIFEST_SECTION)

    @cached_property
    def limits(self) -> records.Limits:
        """The manifest's limits."""
        return records.read_limits(self.manifest, MANIFEST_SECTION)

    @cached_property
    def tokens(self) -> records.Tokens:
        """The manifest's tokens."""
        return records.read_tokens(self.manifest, MANIFEST_SECTION)

    @cached_property
    def trailer(self) -> dict[str, object] | None:
        """The trailer's JSON object, or None; read once."""
        return self.container.trailer()

    def section(self, name: str) -> SectionRange | None:
        """Return a section's range, or None when the header does not list it."""
        return self.container.sections.get(name)
