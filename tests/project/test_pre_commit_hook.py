"""The pre-commit hook names a command that exists and picks bundles."""

from __future__ import annotations

import re
import shlex

from source_tree import ROOT

from rowpack.cli.parser import make_parser


def hook_fields() -> dict[str, str]:
    """Return the keys of the one hook; the file is flat enough to be read line by line."""
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("- ")] == lines[:1]
    return dict(line[2:].split(": ", 1) for line in lines)


def test_the_hook_runs_a_command_on_bundles() -> None:
    fields = hook_fields()
    program, *words = shlex.split(fields["entry"])
    assert program == "rowpack"
    arguments = make_parser().parse_args([*words, "a.bundle", "b/c.bundle"])
    assert [str(path) for path in arguments.bundles] == ["a.bundle", "b/c.bundle"]
    assert re.search(fields["files"], "models/a.bundle")
    assert not re.search(fields["files"], "models/a.bundle.sig")
    assert fields["language"] == "python"
