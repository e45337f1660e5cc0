"""What a command's outcome becomes: text or JSON, on the right stream, with the right exit code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import pytest

from rowpack.cli import main
from rowpack.cli.arguments import add_json_option, argument_errors, token_ids, whole_number
from rowpack.cli.command import Command
from rowpack.cli.console import Console
from rowpack_loaders.errors import Problem, RowpackError

Run = Callable[[Namespace, Console], int]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Make ``rowpack try`` run the given function."""

    def put(run: Run) -> None:
        command = Command("try", "try something", add_json_option, run)
        monkeypatch.setattr("rowpack.cli.parser.COMMANDS", (command,))

    return put


def fails_with(error: BaseException) -> Run:
    def run(arguments: Namespace, console: Console) -> int:
        raise error

    return run


REFUSAL = RowpackError(
    "tensor_missing",
    "the checkpoint is incomplete",
    problems=[
        Problem("tensor_missing", "a tensor is missing", where="lm_head.weight", remedy="Download it again"),
        Problem("tensor_shape", "a tensor has another shape", where="embed", found="[3]", expected="[4]"),
    ],
)


def test_a_refusal_is_text_for_people(install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    install(fails_with(REFUSAL))
    assert main(["try"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "rowpack: the checkpoint is incomplete [tensor_missing]\n"
        "  1. a tensor is missing [tensor_missing]\n"
        "     where:    lm_head.weight\n"
        "     remedy:   Download it again\n"
        "  2. a tensor has another shape [tensor_shape]\n"
        "     where:    embed\n"
        "     found:    [3]\n"
        "     expected: [4]\n"
        "     remedy:   Check that config.json and weights belong together.\n"
    )


def test_a_refusal_is_json_for_machines(install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    install(fails_with(REFUSAL))
    assert main(["try", "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    error = json.loads(out)["error"]
    assert error["code"] == "tensor_missing"
    assert [problem["where"] for problem in error["problems"]] == ["lm_head.weight", "embed"]


@pytest.mark.parametrize(
    ("error", "code", "found"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out.bundle"), "system_error", "No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "system_error", "Permission denied"),
        (MemoryError(), "out_of_memory", None),
        (KeyError("layers"), "unexpected_error", "KeyError: 'layers'"),
        (OSError("no number"), "unexpected_error", "OSError: no number"),
    ],
)
def test_other_errors_get_a_code_and_no_traceback(
    install: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: str,
    found: str | None,
) -> None:
    install(fails_with(error))
    assert main(["try"]) == 1
    message = capsys.readouterr().err
    assert f"[{code}]" in message
    assert "Traceback" not in message
    if found is not None:
        assert found in message


def test_the_traceback_is_shown_on_demand(
    install: Callable[[Run], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(fails_with(KeyError("layers")))
    monkeypatch.setenv("ROWPACK_TRACEBACK", "1")
    assert main(["try"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_ends_cleanly(install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    install(fails_with(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "rowpack: interrupted\n"


def test_errors_in_building_a_request_count_as_arguments(
    install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: Namespace, console: Console) -> int:
        with argument_errors():
            raise RowpackError("bad_size", "too small")

    install(run)
    assert main(["try"]) == 2
    assert "[bad_size]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bild"],
        ["build"],
        ["build", "folder", "--out", "x.bundle"],
        ["build", "folder", "-o", "x.bundle", "--precision", "fp8"],
        ["build", "folder", "-o", "x.bundle", "--target-memory", "lots"],
        ["build", "folder", "-o", "x.bundle", "--max-sequence-length", "0"],
        ["build", "folder", "-o", "x.bundle", "--prefill-rows", "many"],
        ["run", "x.bundle"],
        ["run", "x.bundle", "--prompt", "a", "--prompt-ids", "1"],
        ["run", "x.bundle", "--prompt-ids", "1,x"],
        ["run", "x.bundle", "--prompt", "a", "--max-new-tokens", "0"],
        ["validate"],
    ],
)
def test_unusable_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rowpack: ")
    assert "Traceback" not in err


def test_unusable_arguments_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "folder", "-o", "x.bundle", "--target-memory", "lots", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "bad_size"


def test_help_and_version_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rowpack 0.")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    commands = (
        "build",
        "inspect",
        "validate",
        "run",
        "selftest",
        "bench",
        "eval",
        "export-onnx",
        "synth",
        "demo",
    )
    assert all(f"    {command}" in text for command in commands)


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    from rowpack.cli.commands import COMMANDS

    for command in COMMANDS:
        assert main([command.name, "--help"]) == 0
        assert command.summary in " ".join(capsys.readouterr().out.split())


def test_a_reader_that_goes_away_is_no_error() -> None:
    # More than a pipe's buffer, into a pipe that nobody reads.
    script = """
import sys
from rowpack.cli import parser, main
from rowpack.cli.command import Command
def run(arguments, console):
    for _ in range(100_000):
        console.result("a line of text")
    return 0
parser.COMMANDS = (Command("try", "", lambda parser: None, run),)
sys.exit(main(["try"]))
"""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, env=python_environment()
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def python_environment() -> dict[str, str]:
    """Return the environment for a process that imports the same packages as this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def converted(convert: Callable[[str], object], text: str) -> object:
    parser = ArgumentParser()
    parser.add_argument("--value", type=convert)
    return parser.parse_args([f"--value={text}"]).value


def test_converters_read_numbers() -> None:
    assert converted(whole_number(1), "12") == 12
    assert converted(token_ids, "5, 6,7") == [5, 6, 7]
    assert converted(token_ids, "") == [], "an empty prompt is for the bundle to refuse"


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (whole_number(1), "0"),
        (whole_number(0), "-1"),
        (whole_number(0), "1.0"),
        (whole_number(0), ""),
        (token_ids, "1,,2"),
        (token_ids, "-1"),
    ],
)
def test_converters_refuse(convert: Callable[[str], object], text: str) -> None:
    with pytest.raises(SystemExit):
        converted(convert, text)


def test_json_results_hold_no_nan(install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: Namespace, console: Console) -> int:
        console.json_result({"off": float("nan"), "all": [1.5, float("inf")]})
        return 0

    install(run)
    assert main(["try", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"off": None, "all": [1.5, None]}


def test_warnings_are_shown(install: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: Namespace, console: Console) -> int:
        warnings.warn("prompts run row by row", RuntimeWarning, stacklevel=1)
        return 0

    install(run)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["try"]) == 0
    assert capsys.readouterr().err == "rowpack: warning: prompts run row by row\n"
