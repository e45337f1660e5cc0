"""At least a hundred builds and conversions killed at random moments; see ``kill_writers.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_hundred_killed_writers_leave_the_old_file_or_the_whole_new_one() -> None:
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_writers.py")), "--kills", "100"],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    report = json.loads(finished.stdout)
    assert report["faults"] == []
    assert report["kills"] >= 100
    assert set(report["kills_by_kind"]) == {
        "build, any moment",
        "build, publishing",
        "migrate, any moment",
        "migrate, publishing",
    }
