"""``--runtime``: every command that loads a bundle takes it and hands it to the loader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rowpack.cli
import rowpack_loaders
from rowpack.cli import main
from rowpack.cli.commands import COMMANDS
from rowpack.cli.loading import RUNTIMES
from rowpack_loaders import RowpackError
from rowpack_loaders.runtimes import RUNTIMES as KNOWN_RUNTIMES

Capture = pytest.CaptureFixture[str]

LOADING = {
    "run": ["x.bundle", "--prompt-ids", "1"],
    "selftest": ["x.bundle"],
    "bench": ["x.bundle"],
    "eval": ["x.bundle", "task.jsonl"],
}


def test_the_runtimes_are_those_that_take_each_others_engines() -> None:
    assert set(RUNTIMES) == {name for name, entry in KNOWN_RUNTIMES.items() if not entry.on_gpu}


@pytest.mark.parametrize("command", LOADING)
@pytest.mark.parametrize("runtime", [None, *RUNTIMES])
def test_the_loader_is_given_the_runtime(
    command: str, runtime: str | None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    asked: list[tuple[Path, str | None]] = []

    def load(path: Path, runtime: str | None = None, **_: Any) -> None:
        asked.append((path, runtime))
        raise RowpackError("container_not_found", "there is none")

    monkeypatch.setattr(rowpack_loaders, "load", load)
    words = [command, *LOADING[command], *([] if runtime is None else ["--runtime", runtime])]
    assert main(words) == 1
    assert asked == [(Path("x.bundle"), runtime)]


def test_no_other_command_loads_a_bundle_by_itself() -> None:
    folder = Path(rowpack.cli.__file__).parent
    importers = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.py"))
        if re.search(r"from rowpack_loaders(\.decoder)? import .*\bload\b", path.read_text("utf-8"))
    ]
    assert importers == ["loading.py"]
    users = {path.stem for path in (folder / "commands").glob("*.py") if "load_bundle(" in path.read_text("utf-8")}
    assert users == set(LOADING) <= {command.name for command in COMMANDS}


@pytest.mark.parametrize("runtime", ["trt", "onnx", ""])
def test_another_runtime_is_an_unusable_argument(runtime: str, capsys: Capture) -> None:
    assert main(["selftest", "x.bundle", "--runtime", runtime, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "unusable_arguments"
    assert "--runtime" in error["message"]
