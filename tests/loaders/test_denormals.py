"""Denormal numbers are flushed inside engine calls and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_models import ToyModel, write_toy_bundle

from rowpack_loaders.runtimes.denormals import FlushedDenormals, can_flush_denormals

ROOT = Path(__file__).resolve().parents[2]
TINY = np.float32(1e-40)

pytestmark = pytest.mark.skipif(not can_flush_denormals(), reason="the platform cannot switch the mode")


def is_flushed() -> bool:
    return bool(np.array([TINY]) * np.float32(1) == 0)


def test_the_mode_holds_inside_the_block_only() -> None:
    assert not is_flushed()
    with FlushedDenormals():
        assert is_flushed()
        with FlushedDenormals():
            assert is_flushed()
        assert is_flushed()
    assert not is_flushed()
    with pytest.raises(ValueError, match="inside"), FlushedDenormals():
        raise ValueError("inside")
    assert not is_flushed()


# In a process of its own: the runtime switches over the thread that makes the first session of a process.
SCRIPT = """
import sys, threading
import numpy as np
from rowpack_loaders import load

def is_flushed():
    return bool(np.array([np.float32(1e-40)]) * np.float32(1) == 0)

found = [is_flushed()]
decoder = load(sys.argv[1], threads=2)
found.append(is_flushed())
decoder.generate([1] * 70, 3)
found.append(is_flushed())
thread = threading.Thread(target=lambda: found.append(is_flushed()))
thread.start()
thread.join()
print(found)
"""


def test_loading_and_running_leave_the_host_program_s_mode_alone(tmp_path: Path) -> None:
    bundle = write_toy_bundle(tmp_path / "toy.bundle", ToyModel())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "loaders")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[False, False, False, False]"
