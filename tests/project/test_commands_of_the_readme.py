"""The two commands of the README are the ones that exist, and the one for tests is what CI runs."""

from __future__ import annotations

import os
import re
import subprocess

from source_tree import ROOT

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
