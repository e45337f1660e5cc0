"""``--runtime`` on real bundles: each runtime runs the bundle that was built for the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rowpack import BuildRequest, build
from rowpack.cli import main

pytestmark = pytest.mark.openvino


@pytest.mark.parametrize(("built_for", "runtime"), [("ort", "openvino"), ("openvino", "ort"), ("ort", None)])
def test_a_bundle_runs_on_the_runtime_that_is_named(
    built_for: str, runtime: str | None, rwkv_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.bundle"
    build(BuildRequest(rwkv_checkpoint, path, backend=built_for))
    words = [] if runtime is None else ["--runtime", runtime]
    assert main(["selftest", str(path), "--json", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["backend"] == (runtime or built_for)
    tokens = []
    for choice in (words, []):
        assert main(["run", str(path), "--prompt-ids", "5,6,7", "--max-new-tokens", "4", "--json", *choice]) == 0
        tokens.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert tokens[0] == tokens[1]
