"""What running costs in memory: one copy of the weights, the pages of the file; and nothing a step but cache rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_models import HIDDEN, ToyModel, write_toy_bundle

WEIGHT_BYTES = 64 * 2**20
ROOT = Path(__file__).resolve().parents[2]

# The first bundle is small and pays for libraries and thread pools, so that the rest is about weights.
SCRIPT = """
import json, sys
from rowpack_loaders import load

def resident_bytes(kind):
    for line in open("/proc/self/status"):
        if line.startswith(kind + ":"):
            return int(line.split()[1]) * 1024

warm = load(sys.argv[1], threads=1)
warm.generate([1] * 70, 3)
figures = {"start": resident_bytes("RssAnon")}
decoder = load(sys.argv[2], threads=1)
figures["loaded"] = resident_bytes("VmRSS")
session = decoder.session()
session.prefill([1] * 70, mode="token-loop")
figures["decode_engine_used"] = resident_bytes("VmRSS")
session.prefill([1] * 70, mode="chunked")
figures["both_engines_used"] = resident_bytes("VmRSS")
long_session = warm.session()
long_session.prefill([1] * 100)
before = resident_bytes("RssAnon")
for _ in range(3000):
    long_session.advance(1)
figures["growth_of_3000_steps"] = resident_bytes("RssAnon") - before
another = load(sys.argv[2], threads=1)
another.generate([1] * 70, 3)
figures["end"] = resident_bytes("RssAnon")
print(json.dumps(figures))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shared")
    small = write_toy_bundle(folder / "small.bundle", ToyModel(capacity=4096))
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


SLACK_BYTES = WEIGHT_BYTES // 8


def test_nothing_copies_a_weight(figures: Any) -> None:
    assert figures["end"] - figures["start"] < SLACK_BYTES


def test_the_engines_share_one_mapping(figures: Any) -> None:
    assert figures["decode_engine_used"] - figures["loaded"] > WEIGHT_BYTES - SLACK_BYTES
    assert figures["both_engines_used"] - figures["decode_engine_used"] < SLACK_BYTES


def test_steps_leave_nothing_behind_but_their_cache_rows(figures: Any) -> None:
    rows_bytes = 3000 * 2 * HIDDEN * 4
    assert figures["growth_of_3000_steps"] < rows_bytes + 600_000
