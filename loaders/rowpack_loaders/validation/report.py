"""Hold what a validation found and what it looked at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from rowpack_loaders.errors import Problem


@dataclass
class Checked:
    """What was looked at, for a reader who wants to know what a clean report is worth."""

    mode: str
    layers: list[str] = field(default_factory=list)
    rules: int = 0
    sections: int = 0
    digested_bytes: int = 0
    file_size: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object of ``validate_report.schema.json``."""
        return {
            "mode": self.mode,
            "layers": list(self.layers),
            "rules": self.rules,
            "sections": self.sections,
            "digested_bytes": self.digested_bytes,
            "file_size": self.file_size,
        }


@dataclass
class Report:
    """The result for one bundle; valid when there are no errors, whatever the warnings."""

    path: Path
    checked: Checked
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Tell whether nothing makes the bundle invalid."""
        return not self.errors

    def add(self, problem: Problem, *, is_warning: bool) -> None:
        """Take a finding in; its place is told relative to the bundle."""
        if problem.where is not None:
            problem = replace(problem, where=problem.where.removeprefix(f"{self.path}: "))
        (self.warnings if is_warning else self.errors).append(problem)

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack validate --json`` prints."""
        return {
            "valid": self.valid,
            "path": str(self.path),
            "errors": [problem.as_json() for problem in self.errors],
            "warnings": [problem.as_json() for problem in self.warnings],
            "checked": self.checked.as_json(),
        }
