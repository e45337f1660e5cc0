"""What a vector is: a broken file, how it is made, and what each way of reading it must say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SPLIT, SINGLE = "tiny-split.bundle", "tiny-single.bundle"


@dataclass(frozen=True)
class BadVector:
    """One vector. None as a code means that this way of reading has nothing against the file.

    ``kind`` is ``file`` for everything that is bytes; ``pieces`` may stand for bytes that are too many to make.
    """

    name: str
    what: str
    open_bundle: str | None
    load: str | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    kind: str = "file"
    base: str = SPLIT
    data: bytes | None = None
    pieces: tuple[dict[str, Any], ...] = ()

    def expectation(self) -> dict[str, Any]:
        """Return the content of ``expected.json``."""
        return {
            "what": self.what,
            "open_bundle": self.open_bundle,
            "load": self.load,
            "validate": {"errors": sorted(self.errors), "warnings": sorted(self.warnings)},
        }


@dataclass
class VectorList:
    """The vectors of one module, in the order they are written down."""

    vectors: list[BadVector] = field(default_factory=list)

    def refused(self, name: str, code: str, what: str, data: bytes, **rest: Any) -> None:
        """Add a file that no way of reading accepts, all for the same reason."""
        rest = {"errors": (code,), "warnings": (), **rest}
        self.vectors.append(BadVector(name, what, code, code, data=data, **rest))

    def invalid(self, name: str, errors: tuple[str, ...], what: str, data: bytes, **rest: Any) -> None:
        """Add a file that the validator refuses; ``open_bundle`` and ``load`` accept it unless told otherwise."""
        rest = {"open_bundle": None, "load": rest.get("open_bundle"), "warnings": (), **rest}
        self.vectors.append(BadVector(name, what, errors=errors, data=data, **rest))

    def kind(self, kind: str, code: str | None, what: str) -> None:
        """Add something that is not a file of its own, or a file that something is done to."""
        self.vectors.append(BadVector(kind.replace("_", "-"), what, code, code, (code,) if code else (), (), kind=kind))
