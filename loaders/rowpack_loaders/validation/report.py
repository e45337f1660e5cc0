"""Hold what a validation found and what it looked at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from rowpack_loaders.errors import Problem, with_remedy


@dataclass
class Checked:
    """What was looked at, for a reader who wants to know what a clean report is worth."""

    mode: str
    layers: list[str] = field(default_factory=list)
    rules: int = 0
    sections: int = 0
    digested_bytes: int = 0
    file_size: int | None = None
    elapsed_s: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Return the object of ``validate_report.schema.json``."""
        return {
            "mode": self.mode,
            "layers": list(self.layers),
            "rules": self.rules,
            "sections": self.sections,
            "digested_bytes": self.digested_bytes,
            "file_size": self.file_size,
            "elapsed_s": round(self.elapsed_s, 4),
        }


@dataclass(frozen=True)
class ReportedProblem:
    """A finding, with the layer of rules that found it."""

    problem: Problem
    layer: str
    is_warning: bool


@dataclass
class Report:
    """The result for one bundle; valid when there are no errors, whatever the warnings."""

    path: Path
    checked: Checked
    found: list[ReportedProblem] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        """What makes the bundle invalid, in the order it was found."""
        return [told.problem for told in self.found if not told.is_warning]

    @property
    def warnings(self) -> list[Problem]:
        """What is worth a look and does not make the bundle invalid."""
        return [told.problem for told in self.found if told.is_warning]

    @property
    def valid(self) -> bool:
        """Tell whether nothing makes the bundle invalid."""
        return all(told.is_warning for told in self.found)

    def add(self, problem: Problem, *, layer: str, is_warning: bool) -> None:
        """Take a finding in; its place is told relative to the bundle, its remedy is the code's where it has none."""
        if problem.where is not None:
            problem = replace(problem, where=problem.where.removeprefix(f"{self.path}: "))
        told = ReportedProblem(with_remedy(problem), layer, is_warning)
        if told not in self.found:  # several rules stumble over one malformed part
            self.found.append(told)

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack validate --json`` prints."""
        return {
            "valid": self.valid,
            "path": str(self.path),
            "errors": [problem.as_json() for problem in self.errors],
            "warnings": [problem.as_json() for problem in self.warnings],
            "checked": self.checked.as_json(),
        }
