"""``rowpack validate`` over many bundles: patterns, reports for CI, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rowpack.cli import main
from rowpack.cli.path_patterns import expand_patterns
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.validation import Report, validate
from rowpack_loaders.validation.report_formats import junit_report, markdown_report

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with broken bundles of several names, which is enough to see which were looked at."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("a.bundle", "deep/b.bundle", "deep/er/c.bundle", "deep/er/[x].bundle", "deep/d.txt"):
        (tmp_path / name).write_bytes(b"PK")
    return tmp_path


def names(paths: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_patterns_are_expanded_in_the_order_of_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ["a.bundle", "deep/b.bundle", "deep/er/[x].bundle", "deep/er/c.bundle"]
    assert names(expand_patterns([folder / "**" / "*.bundle"]), folder) == everything
    assert names(expand_patterns([folder / "?.bundle", folder / "a.bundle"]), folder) == ["a.bundle", "a.bundle"]
    assert names(expand_patterns([folder / "*"]), folder) == ["a.bundle"], "folders are no bundles"
    monkeypatch.chdir(folder)
    assert [str(path) for path in expand_patterns([Path("deep/*.bundle")])] == ["deep/b.bundle"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    path = folder / "deep" / "er" / "[x].bundle"
    assert expand_patterns([path]) == [path]


def test_a_missing_file_is_left_for_the_report_and_a_pattern_without_match_is_not(folder: Path) -> None:
    assert expand_patterns([folder / "missing.bundle"]) == [folder / "missing.bundle"]
    with pytest.raises(RowpackError, match="pattern_without_match"):
        expand_patterns([folder / "*.onnx"])


def test_exit_codes_and_one_line_of_json_a_bundle(folder: Path, capsys: Capture) -> None:
    assert main(["validate", "--json", "--progress", "none", str(folder / "**" / "*.bundle")]) == 1
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(report["path"]).name for report in reports] == ["a.bundle", "b.bundle", "[x].bundle", "c.bundle"]
    assert {report["errors"][0]["code"] for report in reports} == {"container_too_short"}
    assert main(["validate", str(folder / "*.onnx")]) == 2
    assert "pattern_without_match" in capsys.readouterr().err
    assert main(["validate", "--json", "--report", "junit", str(folder / "a.bundle")]) == 2


def check_markdown(text: str) -> None:
    assert "1 of 1 not valid" in text
    assert "- error `container_too_short`: " in text


def check_junit(text: str) -> None:
    root = ElementTree.fromstring(text)
    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    (failure,) = suite.findall("testcase/failure")
    assert failure.get("type") == "container_too_short"
    assert "[container_too_short]" in (failure.text or "")


@pytest.mark.parametrize(("form", "check"), [("markdown", check_markdown), ("junit", check_junit)])
def test_reports_for_ci(form: str, check: Callable[[str], None], folder: Path, capsys: Capture) -> None:
    assert main(["validate", "--report", form, "--progress", "none", str(folder / "a.bundle")]) == 1
    check(capsys.readouterr().out)


def hostile_reports(tmp_path: Path) -> list[Report]:
    """Return the report of a bundle whose section name holds markup, in a folder whose name does too."""
    path = tmp_path / "a|b<c>\x01.bundle"
    header = b'{"format":1,"family":"f","task":"text_generation","backend":"b","sections":{"<x>|]]>\\u0000":{}}}'
    path.write_bytes(b"BUNDLE\1\0" + len(header).to_bytes(8, "little") + header)
    return [validate(path)]


def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    reports = hostile_reports(tmp_path)
    root = ElementTree.fromstring(junit_report(reports))
    assert root.findall("testsuite")[0].get("name") == str(tmp_path / "a|b<c>\\x01.bundle")
    page = markdown_report(reports)
    assert "<c>" not in page.replace("\\<c\\>", "")
    assert all(line.count("|") - line.count("\\|") == 7 for line in page.splitlines() if line.startswith("| "))


def test_a_path_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.bundle"
    for form in (["--json"], ["--report", "junit"], ["--report", "markdown"], []):
        done = subprocess.run(
            [sys.executable, "-m", "rowpack", "validate", "--progress", "none", *form, path],
            env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 1, done.stderr
        assert b"container_not_found" in done.stdout
