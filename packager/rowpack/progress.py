"""What a long piece of work says while it runs, and three ways to show it.

Work is told as named stages that follow each other. ``Progress`` itself is silent and only remembers what
happened, which is what a library call wants; its subclasses render the same events for logs (one line a
stage) and for machines (one JSON object a line). The live terminal view is ``rowpack.cli.live_progress``,
apart because it imports rich.

A stage never shows a percentage that nobody measured: bytes are shown where the work counts bytes, elapsed
time always.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO

from rowpack.units import format_bytes, format_seconds
from rowpack_loaders.errors import Problem

HEARTBEAT_SECONDS = 20.0
"""How long a stage may run before the log renderer says that it still does."""

ADVANCE_EVENT_SECONDS = 0.25
"""Least time between two ``advance`` events of one stage in the JSON lines."""


class Stage:
    """One running stage; the work calls ``advance`` as bytes are done, ``describe`` as it moves on."""

    def __init__(self, name: str, detail: str, total_bytes: int | None, on_change: Callable[[Stage], None]) -> None:
        self.name = name
        self.detail = detail
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._started_s = time.monotonic()
        self._on_change = on_change

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._started_s

    def advance(self, byte_count: int) -> None:
        """Add ``byte_count`` bytes to what is done."""
        self.done_bytes += byte_count
        self._on_change(self)

    def reach(self, done_bytes: int, total_bytes: int) -> None:
        """Take over both byte counts from work that tells them as totals."""
        self.total_bytes = total_bytes
        self.advance(done_bytes - self.done_bytes)

    def describe(self, detail: str) -> None:
        """Replace the stage's detail, such as the tensor that is being written."""
        self.detail = detail
        self._on_change(self)


@dataclass(frozen=True)
class FinishedStage:
    """What is remembered of a stage: its name, how long it took, and the bytes it counted (0 if none)."""

    name: str
    elapsed_s: float
    done_bytes: int

    def as_json(self) -> dict[str, object]:
        """Return the record as the JSON object used in build reports."""
        return {**asdict(self), "elapsed_s": round(self.elapsed_s, 4)}


class Progress:
    """Remember stages and warnings without showing anything; base of every renderer.

    A renderer overrides the ``stage_…`` hooks, ``note`` and ``warning`` (calling ``super().warning``), and
    ``close`` where it holds something open. ``stage_advanced`` may be called often: renderers throttle.
    """

    def __init__(self) -> None:
        self.finished_stages: list[FinishedStage] = []
        self.warnings: list[Problem] = []

    @contextmanager
    def stage(self, name: str, detail: str = "", total_bytes: int | None = None) -> Iterator[Stage]:
        """Run the body as the stage ``name``; an exception ends the stage as failed and passes through."""
        stage = Stage(name, detail, total_bytes, self.stage_advanced)
        self.stage_started(stage)
        try:
            yield stage
        except BaseException:
            self.stage_ended(stage, failed=True)
            raise
        self.finished_stages.append(FinishedStage(name, stage.elapsed_s, stage.done_bytes))
        self.stage_ended(stage, failed=False)

    def note(self, text: str) -> None:
        """Show one line of information that belongs to no stage's bookkeeping."""

    def warning(self, problem: Problem) -> None:
        """Report something the user should know that does not stop the work."""
        self.warnings.append(problem)

    def stage_started(self, stage: Stage) -> None:
        """Render the start of ``stage``."""

    def stage_advanced(self, stage: Stage) -> None:
        """Render a change of ``stage``."""

    def stage_ended(self, stage: Stage, *, failed: bool) -> None:
        """Render the end of ``stage``."""

    def close(self) -> None:
        """Release the terminal; called once, also after an error."""


def byte_progress_text(stage: Stage) -> str:
    """Return ``1.2 MB of 3.0 MB``, ``1.2 MB``, or nothing when the stage counts no bytes."""
    if stage.done_bytes == 0 and stage.total_bytes is None:
        return ""
    done = format_bytes(stage.done_bytes)
    if stage.total_bytes is None or stage.total_bytes == stage.done_bytes:
        return done
    return f"{done} of {format_bytes(stage.total_bytes)}"


def stage_text(stage: Stage) -> str:
    """Return name, detail, bytes and elapsed time of ``stage`` on one line."""
    facts = [fact for fact in (stage.detail, byte_progress_text(stage)) if fact]
    return f"{stage.name}: {', '.join([*facts, format_seconds(stage.elapsed_s)])}"


class WarningLines(Progress):
    """Write a line a warning, and nothing of stages and notes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def warning(self, problem: Problem) -> None:
        """Write the warning on its own line."""
        super().warning(problem)
        self._write(f"warning: {problem}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class LineProgress(WarningLines):
    """Write one line a finished stage, and a line every ``heartbeat_s`` seconds while a long one runs."""

    def __init__(self, stream: TextIO, heartbeat_s: float = HEARTBEAT_SECONDS) -> None:
        super().__init__(stream)
        self._heartbeat_s = heartbeat_s
        self._heartbeats: dict[Stage, threading.Event] = {}

    def note(self, text: str) -> None:
        """Write the note on its own line."""
        self._write(text)

    def stage_started(self, stage: Stage) -> None:
        """Start the heartbeat of ``stage``."""
        ended = threading.Event()
        self._heartbeats[stage] = ended
        threading.Thread(target=self._beat, args=(stage, ended), daemon=True).start()

    def stage_ended(self, stage: Stage, *, failed: bool) -> None:
        """Write the one line of ``stage``."""
        self._heartbeats.pop(stage).set()
        self._write(stage_text(stage) + (" (failed)" if failed else ""))

    def _beat(self, stage: Stage, ended: threading.Event) -> None:
        while not ended.wait(self._heartbeat_s):
            self._write(f"{stage_text(stage)} so far")


class JsonLinesProgress(Progress):
    """Write one JSON object a line: ``start``, ``advance``, ``end`` of stages, ``note`` and ``warning``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._last_advance_s: dict[Stage, float] = {}

    def note(self, text: str) -> None:
        """Write ``{"event": "note", "text": …}``."""
        self._write({"event": "note", "text": text})

    def warning(self, problem: Problem) -> None:
        """Write ``{"event": "warning", "code": …, "message": …, …}``."""
        super().warning(problem)
        self._write({"event": "warning", **problem.as_json()})

    def stage_started(self, stage: Stage) -> None:
        """Write the ``start`` event."""
        self._last_advance_s[stage] = 0.0
        self._write_stage("start", stage)

    def stage_advanced(self, stage: Stage) -> None:
        """Write an ``advance`` event unless the last one is too young."""
        elapsed_s = stage.elapsed_s
        if elapsed_s - self._last_advance_s[stage] >= ADVANCE_EVENT_SECONDS:
            self._last_advance_s[stage] = elapsed_s
            self._write_stage("advance", stage)

    def stage_ended(self, stage: Stage, *, failed: bool) -> None:
        """Write the ``end`` event with its outcome."""
        del self._last_advance_s[stage]
        self._write_stage("end", stage, outcome="failed" if failed else "done")

    def _write_stage(self, event: str, stage: Stage, **extra: str) -> None:
        self._write(
            {
                "event": event,
                "stage": stage.name,
                "detail": stage.detail,
                "elapsed_s": round(stage.elapsed_s, 4),
                "bytes_done": stage.done_bytes,
                "bytes_total": stage.total_bytes,
                **extra,
            }
        )

    def _write(self, event: dict[str, object]) -> None:
        self._stream.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._stream.flush()
