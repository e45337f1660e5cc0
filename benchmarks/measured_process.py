"""Run a command in a process of its own and say what it took: seconds, and the most memory it held."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resident_memory import read_resident_memory

SAMPLE_SECONDS = 0.01


class CommandError(Exception):
    """Tell why a command failed: the last thing it wrote."""


@dataclass(frozen=True)
class ProcessFigures:
    """What a command took. Memory is sampled every 10 ms; the peak of all is counted by the kernel."""

    seconds: float
    peak_resident_bytes: int
    peak_anonymous_bytes: int
    output: str


def run_measured(
    command: Sequence[str | os.PathLike[str]],
    *,
    environment: Mapping[str, str] | None = None,
    allowed_status: tuple[int, ...] = (0,),
) -> ProcessFigures:
    """Run a command to its end; raise :class:`CommandError` for another exit status, or where it cannot be started."""
    peak_resident_bytes = peak_anonymous_bytes = 0
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        with start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env={**os.environ, **(environment or {})},
        ) as process:
            while process.poll() is None:
                memory = read_resident_memory(process.pid)
                if memory is not None:
                    peak_resident_bytes = max(peak_resident_bytes, memory.peak_bytes)
                    peak_anonymous_bytes = max(peak_anonymous_bytes, memory.anonymous_bytes)
                time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - started
        output.seek(0)
        errors.seek(0)
        if process.returncode not in allowed_status:
            raise CommandError(last_words(errors.read()) or f"{command[0]} ended with status {process.returncode}")
        return ProcessFigures(seconds, peak_resident_bytes, peak_anonymous_bytes, output.read())


def start(command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
    """Start a process as :class:`subprocess.Popen` does; :class:`CommandError` where the program is not there."""
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be started: {error.strerror}") from error


def last_words(text: str) -> str:
    """Return the last line that names an error, else the last that says anything.

    rowpack's errors end with a code in brackets, Python's begin with the name of an exception.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for form in (r"\[[a-z0-9_]+\]$", r"^[A-Za-z_.]*(Error|Exception): "):
        named = [line for line in lines if re.search(form, line)]
        if named:
            return named[-1]
    return lines[-1] if lines else ""


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
