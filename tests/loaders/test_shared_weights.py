"""Both engines and every decoder of a process use one copy of the weights: the pages of the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_models import ToyModel, write_toy_bundle

WEIGHT_BYTES = 64 * 2**20
ROOT = Path(__file__).resolve().parents[2]

# The first bundle is small and pays for libraries and thread pools, so that the rest is about weights.
SCRIPT = """
import json, sys, time
from rowpack_loaders import load

def anonymous_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

warm = load(sys.argv[1], threads=1)
warm.generate([1] * 70, 3)
figures = {"start": anonymous_bytes()}
started = time.perf_counter()
first = load(sys.argv[2], threads=1, layout="single")
figures["load_s"] = time.perf_counter() - started
first.generate([1, 2, 3], 3)
figures["decode_only"] = anonymous_bytes()
second = load(sys.argv[2], threads=1, layout="split")
second.generate([1] * 70, 3)
figures["both_engines"] = anonymous_bytes()
print(json.dumps(figures))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shared")
    small = write_toy_bundle(folder / "small.bundle", ToyModel())
    large = write_toy_bundle(folder / "large.bundle", ToyModel(padding_bytes=WEIGHT_BYTES))
    assert large.stat().st_size > WEIGHT_BYTES
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "loaders")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(small), str(large)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_loading_and_running_copies_no_weight(figures: Any) -> None:
    assert figures["decode_only"] - figures["start"] < WEIGHT_BYTES // 8


def test_the_prefill_engine_and_another_decoder_cost_no_weights(figures: Any) -> None:
    assert figures["both_engines"] - figures["decode_only"] < WEIGHT_BYTES // 8
