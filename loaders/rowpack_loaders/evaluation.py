"""Score a model on a task of exact continuations, as the last-word tests do.

A task is a JSON Lines file; each line is one example with a context and the continuation that counts as
right: ``{"context": text}`` or ``{"context_ids": [int]}``, with ``{"target": text}`` or ``{"target_ids":
[int]}``. Ids win over text when both are given. The model is right when its greedy tokens are exactly the
target's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack_loaders.decoder import Decoder
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.generation import generate_tokens
from rowpack_loaders.sampling import Sampler, SamplingParameters
from rowpack_loaders.session import PrefillMode
from rowpack_loaders.strict_json import parse_json_object

LINE_LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class TaskExample:
    """One example in token ids; ``line`` is its place in the task file, counted from 1."""

    line: int
    context_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclass(frozen=True)
class ExampleResult:
    """What the model continued with, and whether that is the target."""

    line: int
    predicted_ids: tuple[int, ...]
    correct: bool


@dataclass(frozen=True)
class EvaluationReport:
    """Counts over a task, and every prediction."""

    bundle: str
    task: str
    prefill_mode: str
    results: tuple[ExampleResult, ...]

    @property
    def examples(self) -> int:
        """How many examples were scored."""
        return len(self.results)

    @property
    def correct(self) -> int:
        """How many of them the model continued exactly."""
        return sum(result.correct for result in self.results)

    @property
    def accuracy(self) -> float:
        """The share of right examples, between 0 and 1."""
        return self.correct / self.examples

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack eval --json`` prints."""
        return {
            "bundle": self.bundle,
            "task": self.task,
            "prefill_mode": self.prefill_mode,
            "examples": self.examples,
            "correct": self.correct,
            "accuracy": round(self.accuracy, 6),
        }


def evaluate(
    decoder: Decoder,
    task_path: str | os.PathLike[str],
    *,
    prefill: PrefillMode = "auto",
    limit: int | None = None,
    on_example: Callable[[int], None] | None = None,
) -> EvaluationReport:
    """Score ``decoder`` on the first ``limit`` examples (default: all) of the task at ``task_path``.

    ``on_example(done)`` tells progress. Raises ``task_not_readable``, ``task_line_invalid`` naming the
    line, ``task_empty``, and what running raises.
    """
    session = decoder.session()
    results: list[ExampleResult] = []
    mode = ""
    for example in read_task(decoder, task_path):
        if limit is not None and len(results) >= limit:
            break
        run = generate_tokens(
            session,
            example.context_ids,
            max_new_tokens=len(example.target_ids),
            sampler=Sampler(SamplingParameters()),
            prefill=prefill,
        )
        mode = run.prefill.mode
        results.append(ExampleResult(example.line, run.token_ids, run.token_ids == example.target_ids))
        if on_example is not None:
            on_example(len(results))
    if not results:
        raise RowpackError(
            "task_empty",
            "The task has no examples",
            where=str(task_path),
            found="no filled line",
            expected="at least one line",
        )
    return EvaluationReport(
        bundle=str(decoder.bundle.path) if decoder.bundle else decoder.model.model_id,
        task=str(task_path),
        prefill_mode=mode,
        results=tuple(results),
    )


def read_task(decoder: Decoder, task_path: str | os.PathLike[str]) -> Iterator[TaskExample]:
    """Yield the examples of a task file in token ids, line by line; empty lines are skipped."""
    path = Path(task_path)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LINE_LIMIT_BYTES), b""), start=1):
                if line.strip():
                    yield _example(decoder, line, number, f"{path}, line {number}")
    except OSError as error:
        raise RowpackError(
            "task_not_readable",
            "The task cannot be read",
            where=str(path),
            found=error.strerror or str(error),
            expected="a JSON Lines file",
        ) from error


def _example(decoder: Decoder, line: bytes, number: int, where: str) -> TaskExample:
    fields = parse_json_object(line, where=where)
    # The template of a tokenizer may add a start token, which belongs before the context and not inside.
    context = _token_ids(decoder, fields, "context", where, add_special_tokens=True)
    target = _token_ids(decoder, fields, "target", where, add_special_tokens=False)
    return TaskExample(number, context, target)


def _token_ids(
    decoder: Decoder, fields: dict[str, Any], name: str, where: str, *, add_special_tokens: bool
) -> tuple[int, ...]:
    ids = fields.get(f"{name}_ids")
    text = fields.get(name)
    if ids is None and isinstance(text, str):
        ids = decoder.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not isinstance(ids, list) or not ids or not all(type(token_id) is int for token_id in ids):
        raise RowpackError(
            "task_line_invalid",
            f"An example of the task has no usable {name}",
            where=where,
            found=repr(fields.get(f"{name}_ids", text))[:80],
            expected=f'"{name}": a filled text, or "{name}_ids": a filled array of integers',
        )
    return tuple(ids)
