"""One difference between two bundles, and the reading of both sides that every comparison starts from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rowpack_loaders.bundle import Bundle

PARTS = (
    "producer",
    "model",
    "decision",
    "engines",
    "graph",
    "states",
    "weights",
    "limits",
    "tokens",
    "tokenizer",
    "self_test",
    "sections",
    "provenance",
)
"""What two bundles can differ in, in the order it is told."""


@dataclass(frozen=True)
class Difference:
    """Something that is not the same: in which part, at which place, and what each side has, as words."""

    part: str
    where: str
    message: str
    first: str | None = None
    second: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """Return the object that ``rowpack diff --json`` lists."""
        return asdict(self)

    def __str__(self) -> str:
        if self.first is None and self.second is None:
            return f"{self.where}: {self.message}"
        return f"{self.where}: {self.message}: {self.first or 'nothing'} → {self.second or 'nothing'}"


@dataclass(frozen=True)
class Pair:
    """Both open bundles."""

    first: Bundle
    second: Bundle

    def common(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that are sections of both."""
        return [name for name in names if name in self.first.sections and name in self.second.sections]

    def same_section(self, name: str) -> bool:
        """Tell whether a section of both has the same bytes, by the manifests' digests where both have one."""
        digests = [_digest(bundle, name) for bundle in (self.first, self.second)]
        if None not in digests:
            return digests[0] == digests[1]
        return self.first.section_view(name) == self.second.section_view(name)

    def read(self, name: str, limit_bytes: int) -> tuple[bytes, bytes]:
        """Return the bytes of a section of both."""
        return (
            self.first.read_section(name, limit_bytes=limit_bytes),
            self.second.read_section(name, limit_bytes=limit_bytes),
        )


def shortened(value: object, limit: int = 120) -> str:
    """Return a value as text of bounded length: a string as it is, everything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _digest(bundle: Bundle, name: str) -> str | None:
    sections = bundle.manifest.get("sections")
    entry = sections.get(name) if isinstance(sections, dict) else None
    digest = entry.get("sha256") if isinstance(entry, dict) else None
    return digest if isinstance(digest, str) else None
