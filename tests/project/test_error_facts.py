"""Every error says what was found, what was needed and what to do: read off the calls in the source."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import PACKAGES, called_name, python_files, relative

from rowpack.cli import main
from rowpack_loaders import errors
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.schema_data import error_codes

FACTS = ("found", "expected", "remedy")
PARAMETERS = ("code", "message", "where", *FACTS)

EXCEPTIONS = {
    # argparse's message is the whole of what it found and expected.
    ("packager/rowpack/cli/arguments.py", "unusable_arguments"): {"found", "expected"},
    # It stands for several problems, each with its own facts.
    ("packager/rowpack/checkpoint/folder.py", "bad_checkpoint"): {"found", "expected", "remedy"},
}

LEFT_TO_THE_CODE = {"remedy"}
"""What calls of the loaders may leave out: most of theirs are rules of a format, where what to do depends on the rule
alone and stands with its code in schema/errors.json. ``RowpackError`` and the validator's report fill it in, which is
tested below."""


def may_be_none(value: ast.expr) -> bool:
    """Tell whether an argument is None as it stands, or on one side of a condition."""
    if isinstance(value, ast.IfExp):
        return may_be_none(value.body) or may_be_none(value.orelse)
    return isinstance(value, ast.Constant) and value.value is None


def missing_facts(source: str) -> Iterator[tuple[int, str, set[str]]]:
    """Yield line, code and missing facts of each call that makes an error or a problem and is not complete."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called_name(node.func) in ("RowpackError", "Problem"):
            given = dict(zip(PARAMETERS, node.args, strict=False))
            given |= {word.arg: word.value for word in node.keywords if word.arg is not None}
            missing = {name for name in FACTS if name not in given or may_be_none(given[name])}
            if missing:
                code = given["code"]
                yield node.lineno, code.value if isinstance(code, ast.Constant) else ast.unparse(code), missing


def incomplete_calls() -> Iterator[tuple[str, str, set[str], str]]:
    """Yield file, code, missing facts and place of every incomplete call in the packages."""
    for package, folder in PACKAGES.items():
        for path in python_files(folder):
            for line, code, missing in missing_facts(path.read_text("utf-8")):
                left = missing - LEFT_TO_THE_CODE if package == "rowpack_loaders" else missing
                if left:
                    yield (
                        relative(path),
                        code,
                        left,
                        f"{relative(path)}:{line}: {code} has no {', '.join(sorted(left))}",
                    )


def test_every_error_says_what_was_found_what_was_needed_and_what_to_do() -> None:
    found = [
        text for path, code, missing, text in incomplete_calls() if not missing <= EXCEPTIONS.get((path, code), set())
    ]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    needed = {(path, code): missing for path, code, missing, _ in incomplete_calls()}
    assert {key: missing for key, missing in needed.items() if key in EXCEPTIONS} == EXCEPTIONS


def test_the_search_finds_what_is_missing() -> None:
    source = """
RowpackError("complete", "message", found=x, expected="y", remedy="z")
RowpackError("bare", "message")
errors.Problem("by_position", "message", where, "found", "expected")
Problem("none", "message", found=None, expected="y", remedy="z" if a else None)
RowpackError(code, "message", found=x, expected="y")
from_problems("other", "message", problems)
"""
    assert list(missing_facts(source)) == [
        (3, "bare", {"found", "expected", "remedy"}),
        (4, "by_position", {"remedy"}),
        (5, "none", {"found", "remedy"}),
        (6, "code", {"remedy"}),
    ]


def test_an_error_without_a_remedy_has_that_of_its_code() -> None:
    code = "section_missing"
    remedy = error_codes()[code]["remedy"]
    error = RowpackError(code, "it is not there")
    assert error.problem.remedy == error.as_json()["remedy"] == remedy
    assert remedy in str(error)
    assert RowpackError(code, "it is not there", remedy="Look again").problem.remedy == "Look again"
    several = RowpackError.from_problems("bad_checkpoint", "several", [Problem(code, "it is not there")])
    assert [problem.remedy for problem in several.problems] == [remedy]
    assert several.problem.remedy is None, "the problems say what to do"


def test_an_error_is_not_lost_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> dict[str, dict[str, str]]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(errors, "error_codes", unreadable)
    assert RowpackError("section_missing", "it is not there").problem.remedy is None


def test_the_command_line_tells_what_to_do_about_an_error_of_the_loaders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(tmp_path / "no.bundle")]
    remedy = error_codes()["container_not_found"]["remedy"]
    assert main(words) == 1
    assert f"remedy:   {remedy}" in capsys.readouterr().err
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["remedy"] == remedy
