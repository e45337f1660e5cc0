"""Register inputs that break one rule of the validator each, and the edits they are made with."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthetic_bundles import BundleParts

from rowpack_loaders.container import TRAILER_MAGIC
from rowpack_loaders.validation import validate

TRAILER_FRAME = 16


@dataclass(frozen=True)
class Breach:
    """A rule's name, what breaks it, and every code that is then reported."""

    rule: str
    label: str
    codes: frozenset[str]
    write: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.rule}: {self.label}" if self.label else self.rule


class Breaches(list[Breach]):
    """The broken inputs of one test module, filled by the two decorators."""

    def written(self, rule: str, *codes: str, label: str = "") -> Callable[[Callable[[Path], None]], None]:
        """Register a function that writes a broken bundle to the path it is given."""

        def register(write: Callable[[Path], None]) -> None:
            self.append(Breach(rule, label, frozenset(codes), write))

        return register

    def bent(
        self, rule: str, *codes: str, label: str = "", parts: Callable[[], BundleParts] = BundleParts
    ) -> Callable[[Callable[[BundleParts], None]], None]:
        """Register a function that bends the parts of a valid bundle before it is written."""

        def register(bend: Callable[[BundleParts], None]) -> None:
            def write(path: Path) -> None:
                broken = parts()
                bend(broken)
                broken.write(path)

            self.append(Breach(rule, label, frozenset(codes), write))

        return register


def edited(path: Path, change: Callable[[bytearray], None]) -> None:
    """Write a valid bundle, then change its bytes."""
    BundleParts().write(path)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def header_place(data: bytearray) -> tuple[dict[str, Any], int]:
    """Return the parsed header of a written bundle and its length."""
    (length,) = struct.unpack_from("<Q", data, 8)
    return json.loads(data[16 : 16 + length]), length


def replace_trailer(data: bytearray, text: Callable[[dict[str, Any]], bytes]) -> None:
    """Put another text into the trailer of a written bundle, framed rightly."""
    (length,) = struct.unpack_from("<Q", data, len(data) - TRAILER_FRAME)
    start = len(data) - TRAILER_FRAME - length
    new = text(json.loads(data[start : start + length]))
    data[start:] = new + struct.pack("<Q", len(new)) + TRAILER_MAGIC


def assert_breach_is_told(case: Breach, path: Path) -> None:
    """Write the broken bundle and demand exactly its codes, each with a place."""
    case.write(path)
    report = validate(path)
    found = [*report.errors, *report.warnings]
    assert {problem.code for problem in found} == case.codes, "\n".join(map(str, found))
    assert all(problem.where for problem in found)
