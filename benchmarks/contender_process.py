"""Keep one contender in a process of its own and talk to it in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contenders import LoadRequest
from measured_process import last_words, start

HERE = Path(__file__).resolve().parent


class ContenderError(Exception):
    """Tell why a contender does not run here: the last thing its process wrote."""


class ContenderProcess:
    """A loaded contender; use it as a context manager. ``import_path`` stands in for ``PYTHONPATH``.

    Raises :class:`ContenderError` whenever its process ends, ``CommandError`` where it cannot be started.
    """

    def __init__(
        self,
        python: str,
        module: str,
        request: LoadRequest,
        *,
        import_path: str | None = None,
    ) -> None:
        inherited = os.environ.get("PYTHONPATH", "") if import_path is None else import_path
        paths = os.pathsep.join([str(HERE), *([inherited] if inherited else [])])
        environment = {**os.environ, "OMP_NUM_THREADS": str(request.threads), "PYTHONPATH": paths}
        fields = json.dumps(asdict(request), default=str)
        self._scratch = tempfile.TemporaryDirectory()
        self._error_file = Path(self._scratch.name) / "stderr"
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._scratch.cleanup)
            with self._error_file.open("wb") as errors:
                self._process: subprocess.Popen[str] = start(
                    [python, "-W", "ignore", "-m", "contenders", module, fields],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment,
                )
            on_failure.callback(self._process.communicate)
            self.loading = self._answer()
            on_failure.pop_all()

    def __enter__(self) -> ContenderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._scratch.cleanup()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            # A process that ended meanwhile has left its last words, which the answer raises.
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def prefill_s(self, token_ids: list[int]) -> float:
        """Run a prompt from the start; return its seconds."""
        return float(self.ask(do="prefill", token_ids=token_ids)["s"])

    def step_s(self, steps: int) -> float:
        """Run greedy steps after what ran last; return the seconds of one."""
        return float(self.ask(do="decode", steps=steps)["s"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            words = last_words(self._error_file.read_text(errors="replace"))
            raise ContenderError(words or f"its process ended with status {status}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prompt_of(tokens: int, vocabulary_size: int) -> list[int]:
    """Return a prompt whose tokens differ and are the same in every run."""
    return [(7919 * index + 13) % vocabulary_size for index in range(tokens)]
