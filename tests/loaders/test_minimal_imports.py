"""The loader needs numpy and one runtime: nothing that only building needs, and the rest when it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_models import HYBRID, write_toy_bundle

ROOT = Path(__file__).resolve().parents[2]

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocker())
"""

BUILDING_ONLY = "rowpack,onnx,onnx_graphsurgeon,onnx_ir,onnxscript,torch,transformers,safetensors,ml_dtypes,rich"
OPTIONAL = "tokenizers,msgpack,zstandard,jsonschema"


def run_blocked(blocked: str, script: str, *arguments: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER + script, blocked, *arguments],
        env={**inherited, "PYTHONPATH": str(ROOT / "loaders"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_bundle(tmp_path_factory.mktemp("bare") / "toy.bundle", HYBRID)


def test_a_bundle_runs_with_numpy_and_one_runtime(bundle: Path) -> None:
    script = """
from rowpack_loaders import load, open_bundle
with load(sys.argv[2], threads=1) as decoder:
    print(list(decoder.generate([3, 1, 4], 5, stop_token_ids=[]).token_ids))
print(sorted(name for name in BLOCKED if name in sys.modules))
"""
    printed = run_blocked(f"{BUILDING_ONLY},{OPTIONAL}", script, str(bundle)).splitlines()
    assert len(eval(printed[0])) == 5
    assert printed[1] == "[]"


def test_the_rest_is_imported_when_it_is_used(bundle: Path) -> None:
    script = """
import rowpack_loaders.benchmark, rowpack_loaders.evaluation, rowpack_loaders.selftest, rowpack_loaders.golden
from rowpack_loaders import RowpackError
from rowpack_loaders.tokenization import TextTokenizer
try:
    TextTokenizer(b"{}")
except RowpackError as error:
    print(error.code)
"""
    assert run_blocked(f"{BUILDING_ONLY},{OPTIONAL}", script).strip() == "tokenizer_library_missing"


def test_a_missing_runtime_is_named(bundle: Path) -> None:
    script = """
from rowpack_loaders import RowpackError, load
try:
    load(sys.argv[2])
except RowpackError as error:
    print(error.code, error.problem.found)
"""
    assert run_blocked("onnxruntime", script, str(bundle)).startswith("runtime_not_installed onnxruntime")


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = """
import rowpack_loaders
dir(rowpack_loaders)
print(sorted({name.split(".")[0] for name in sys.modules} & {"numpy", "onnxruntime", "tokenizers", "mmap"}))
"""
    assert run_blocked("none", script).strip() == "[]"


def test_running_a_bundle_reports_nothing_to_anybody(bundle: Path, tmp_path: Path) -> None:
    script = """
import os
from rowpack_loaders import load
load(sys.argv[2], threads=1).generate([1, 2, 3], 2)
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""
    printed = run_blocked("none", script, str(bundle), HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert printed.strip() == "1"
    assert list(tmp_path.rglob("*")) == [], "the runtime's telemetry keeps its database in the home folder"
