"""Where results, progress and errors of a command go."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rowpack.progress import JsonLinesProgress, LineProgress, Progress, WarningLines
from rowpack_loaders.errors import Problem, RowpackError


class Console:
    """The two streams of a command: results on ``out``, everything said along the way on ``side``."""

    def __init__(self, out: TextIO, side: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._side = side
        self.as_json = as_json

    def result(self, text: str) -> None:
        """Print one part of the human result and a line end."""
        self._out.write(text + "\n")

    def stream(self, text: str) -> None:
        """Print a piece of generated text at once, without a line end."""
        self._out.write(text)
        self._out.flush()

    def json_result(self, value: object) -> None:
        """Print ``value`` as one JSON object on one line; JSON has no NaN, so null stands for it."""
        self._out.write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n")

    def say(self, text: str) -> None:
        """Print a line beside the results."""
        self._side.write(f"rowpack: {text}\n")
        self._side.flush()

    def error(self, error: RowpackError) -> None:
        """Print ``error``: as JSON on the result stream when asked for, else as text beside it."""
        if self.as_json:
            self.json_result({"error": error.as_json()})
            self._out.flush()
        else:
            self.say(error_text(error))

    @contextmanager
    def progress(self, mode: str) -> Iterator[Progress]:
        """Open the progress view ``mode`` (one of ``PROGRESS_MODES``) on the side stream."""
        progress = self._make_progress(mode)
        try:
            yield progress
        finally:
            progress.close()

    def _make_progress(self, mode: str) -> Progress:
        if mode == "auto":
            terminal = self._side.isatty() and os.environ.get("TERM") != "dumb"
            mode = "live" if terminal else "lines"
        if mode == "live":
            from rowpack.cli.live_progress import LiveProgress

            return LiveProgress(self._side)
        if mode == "lines":
            return LineProgress(self._side)
        if mode == "jsonl":
            return JsonLinesProgress(self._side)
        # With --json the report has the warnings; otherwise nobody else would tell them.
        return Progress() if self.as_json else WarningLines(self._side)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return value


def error_text(error: RowpackError) -> str:
    """Return all problems of ``error`` as lines for a reader."""
    if error.problems == (error.problem,):
        return "\n".join(problem_lines(error.problem))
    lines = problem_lines(error.problem)
    for number, problem in enumerate(error.problems, start=1):
        first, *rest = problem_lines(problem)
        lines += [f"  {number}. {first}", *(f"   {line}" for line in rest)]
    return "\n".join(lines)


def problem_lines(problem: Problem) -> list[str]:
    """Return one problem as a headline and one indented line for each fact it has."""
    facts = (
        ("where", problem.where),
        ("found", problem.found),
        ("expected", problem.expected),
        ("remedy", problem.remedy),
    )
    return [
        f"{problem.message} [{problem.code}]",
        *(f"  {name + ':':<10}{fact}" for name, fact in facts if fact is not None),
    ]
