"""The two commands of the README are the ones that exist, and the one for tests is what CI runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import PACKAGES, ROOT, python_files

from rowpack.cli.parser import make_parser
from rowpack_loaders.runtimes import INSTALLED_BY

DEMO = "bash scripts/demo"
TEST = "bash scripts/test"


def readme_commands() -> list[str]:
    """Return the command lines of the README's first shell block, without their comments."""
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [line.split("#")[0].strip() for line in block[1].splitlines()]


def test_the_readme_has_two_commands() -> None:
    assert readme_commands() == [DEMO, TEST]


def test_the_readme_installs_what_the_project_offers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    plain, extra = blocks[1].splitlines()
    assert plain.split("#")[0].split() == ["pip", "install", "."]
    (named,) = re.findall(r"^pip install '\.\[([\w-]+)\]'", extra)
    offered = set(project["optional-dependencies"]) - {"dev"}
    assert set(re.findall(r"[\w-]+", extra.split(":")[1])) - {"or"} == offered
    assert named in offered


def test_every_extra_that_is_advised_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *python_files(*PACKAGES.values())]
    advised = {name for path in documents for name in re.findall(r"rowpack\[([\w-]+)\]", path.read_text("utf-8"))}
    assert {"openvino", "signing"} <= advised <= extras
    for backend, installed in INSTALLED_BY.items():
        extra = re.fullmatch(r"'rowpack\[([\w-]+)\]'", installed)
        if extra is None:
            assert any(name.startswith(f"{installed}>=") for name in project["dependencies"]), backend
        else:
            assert extra[1] in extras, backend


def test_ci_runs_the_test_command_as_it_stands() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert TEST in lines
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines, "any step that fails fails the run"


def test_scripts_are_executable_bash_without_syntax_errors() -> None:
    for name in ("scripts/demo", "scripts/test", "scripts/lock", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
    for name in ("scripts/demo", "scripts/test", "scripts/lock", "scripts/environment.sh", ".ci/run"):
        subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)


def rowpack_commands(text: str) -> list[str]:
    """Return the command lines of rowpack in the console blocks of a document."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ rowpack ") for block in blocks for line in block.splitlines() if line[:1] == "$"]


def test_every_command_of_the_tour_parses() -> None:
    commands = rowpack_commands((ROOT / "README.md").read_text("utf-8"))
    assert len(commands) >= 5
    for command in commands:
        make_parser().parse_args(shlex.split(command))


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (source,) = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    (tmp_path / "packager").symlink_to(ROOT / "packager")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-W", "error", "-c", source], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "kjv.bundle").exists()
