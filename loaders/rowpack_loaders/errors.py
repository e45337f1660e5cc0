"""The one error type of both packages.

Every error a user can cause carries a stable code (a key of ``schema/errors.json``), where it was seen,
what was found, what was needed, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from rowpack_loaders.schema_data import error_codes


@dataclass(frozen=True)
class Problem:
    """One finding: a stable code, and the five facts a reader needs to act on it.

    ``where`` is a file, a JSON pointer, a byte offset or a tensor name. ``found`` and ``expected`` are short
    texts for people; machines should rely on ``code`` and ``where`` only.
    """

    code: str
    message: str
    where: str | None = None
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None

    def as_json(self) -> dict[str, str | None]:
        """Return the problem as the JSON object used by every ``--json`` report."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        facts = []
        if self.found is not None:
            facts.append(f"found {self.found}")
        if self.expected is not None:
            facts.append(f"expected {self.expected}")
        if facts:
            text += f" ({', '.join(facts)})"
        if self.remedy:
            text += f". {self.remedy}"
        return f"{text} [{self.code}]"


def with_remedy(problem: Problem) -> Problem:
    """Return ``problem`` with the remedy that the table of codes has for it, where it has none of its own."""
    if problem.remedy is not None:
        return problem
    try:
        entry = error_codes().get(problem.code)
    except OSError:  # such as no more open files: what is told must not be lost over it
        return problem
    return problem if entry is None else replace(problem, remedy=entry["remedy"])


class RowpackError(Exception):
    """An error the user can cause and mend; the base of every error either package raises on purpose.

    ``problems`` holds every finding when several were collected before giving up; the first of them is the
    error itself when no summary is given. A problem without a remedy of its own gets that of its code;
    a summary has none, for its problems say what to do.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        where: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        remedy: str | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        own = Problem(code, message, where, found, expected, remedy)
        self.problem = own if problems else with_remedy(own)
        self.problems: tuple[Problem, ...] = tuple(map(with_remedy, problems)) or (self.problem,)
        super().__init__(str(self))

    @property
    def code(self) -> str:
        """The stable code of the (summarising) problem."""
        return self.problem.code

    @classmethod
    def of(cls, problem: Problem) -> RowpackError:
        """Build the error that is one problem."""
        return cls(
            problem.code,
            problem.message,
            where=problem.where,
            found=problem.found,
            expected=problem.expected,
            remedy=problem.remedy,
        )

    @classmethod
    def from_problems(cls, code: str, message: str, problems: Sequence[Problem]) -> RowpackError:
        """Build an error that reports several problems at once under a summarising ``code``."""
        return cls(code, message, problems=problems)

    def as_json(self) -> dict[str, object]:
        """Return ``{"code", "message", …, "problems": […]}`` for machines."""
        return {**self.problem.as_json(), "problems": [problem.as_json() for problem in self.problems]}

    def __str__(self) -> str:
        if self.problems == (self.problem,):
            return str(self.problem)
        lines = [str(self.problem), *(f"  - {problem}" for problem in self.problems)]
        return "\n".join(lines)
