"""Run a program that writes a bundle and kills itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def run_until_killed(program: str, target: Path) -> None:
    """Run ``program`` with ``target`` as its argument, and assert that it ends by SIGKILL."""
    killed = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
