"""Run the README's commands again and put their real output into it: `.venv/bin/python scripts/refresh_readme.py`.

Output stands below a line `$ rowpack …`. Where it is shortened by a line `…`, as many lines are kept before and after
that line as there were. Times are those of the machine this runs on, so run it on a quiet one.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ELLIPSIS = "…"


def refresh(readme: str, folder: Path) -> str:
    """Return ``readme`` with the output of every command in its console blocks made anew in ``folder``."""

    def refresh_block(block: re.Match[str]) -> str:
        commands = re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]
        return "```console\n" + "".join(refresh_command(command, folder) for command in commands) + "```"

    return re.sub(r"^```console\n(.*?)^```", refresh_block, readme, flags=re.MULTILINE | re.DOTALL)


def refresh_command(command_and_output: str, folder: Path) -> str:
    """Run one command; return it and its output, shortened as the old output was."""
    command, *old = command_and_output.splitlines()
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "packager", ROOT / "loaders")))},
    )
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stdout}")
    new = done.stdout.splitlines()
    if ELLIPSIS in old:
        cut = old.index(ELLIPSIS)
        after = len(old) - cut - 1
        new = [*new[:cut], ELLIPSIS, *new[len(new) - after :]]
    return "\n".join([f"$ {command}", *new]) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "packager").symlink_to(ROOT / "packager")
        README.write_text(refresh(README.read_text("utf-8"), Path(scratch)), "utf-8")
