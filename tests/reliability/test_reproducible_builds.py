"""The same checkpoint gives the same file, from anywhere, under any name, on any number of cores.

What another machine changes is simulated as far as one machine can: without the vector code that NumPy chooses by the
processor, with fewer cores, another hash seed, language and temporary folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_models import BUILD_OPTIONS

from rowpack import BuildRequest, build
from rowpack_loaders import open_bundle
from rowpack_loaders.digests import content_digest

FAMILIES = ("qwen3_5", "rwkv")


def vector_features() -> str:
    """Return the processor features that NumPy has special code for and finds here."""
    from numpy._core import _multiarray_umath as built

    return " ".join(name for name in built.__cpu_dispatch__ if built.__cpu_features__.get(name))


def build_elsewhere(checkpoint: Path, output: Path, folder: Path, **environment: str) -> dict[str, Any]:
    """Build in another process, from ``folder``, with paths relative to it; return the report."""
    options = ["--max-sequence-length", "64", "--prefill-rows", "16", "--target-memory", "1GiB", "--model-id", "tiny"]
    command = [sys.executable, "-W", "ignore", "-m", "rowpack", "build"]
    command += [os.path.relpath(checkpoint, folder), "-o", os.path.relpath(output, folder), "--json", *options]
    printed = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    report: dict[str, Any] = json.loads(printed)
    return report


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_builds_from_elsewhere_are_byte_identical(
    family: str, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = tiny_checkpoints[family]
    here = build(BuildRequest(checkpoint, tmp_path / "here.bundle", **BUILD_OPTIONS))
    surroundings: list[dict[str, str]] = [
        {},
        {"PYTHONHASHSEED": "12345", "LC_ALL": "C", "TZ": "Asia/Tokyo"},
        {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        {"NPY_DISABLE_CPU_FEATURES": vector_features()},
    ]
    for number, environment in enumerate(surroundings):
        folder = tmp_path / f"folder {number}"
        folder.mkdir()
        output = folder / f"another-name-{number}"
        report = build_elsewhere(checkpoint, output, folder, **environment)
        assert output.read_bytes() == here.path.read_bytes(), environment
        assert (report["content_digest"], report["file_digest"]) == (here.content_digest, here.file_digest)


@pytest.mark.slow
def test_the_number_of_cores_does_not_matter(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is one core only")
    files = []
    for count in (1, len(cores)):
        output = tmp_path / f"{count}.bundle"
        program = (
            "import os, sys\n"
            f"os.sched_setaffinity(0, {sorted(cores)[:count]})\n"
            "from rowpack.cli import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        command = [sys.executable, "-c", program, "build", str(tiny_checkpoints["qwen3_5"]), "-o", str(output)]
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
        subprocess.run(
            [*command, "--target-memory", "1GiB"], env=environment, capture_output=True, check=True, timeout=120
        )
        files.append(output.read_bytes())
    assert files[0] == files[1]


def test_the_date_of_the_source_is_honoured(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(name: str) -> bytes:
        request = BuildRequest(tiny_checkpoints["rwkv"], tmp_path / name, verify=False, **BUILD_OPTIONS)
        return build(request).path.read_bytes()

    undated = built("undated")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = built("dated")
    assert dated == built("again")
    assert b"2023-11-14T22:13:20Z" in dated
    with open_bundle(tmp_path / "undated") as plain, open_bundle(tmp_path / "dated") as stamped:
        assert plain.manifest == stamped.manifest, "the date is in the trailer alone"
    assert undated != dated


def test_what_another_processor_measures_is_not_in_the_content_digest(
    tiny_bundles: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    """Golden vectors of another machine differ in their last digits, its memory in all of them."""
    with open_bundle(tiny_bundles["qwen3_5", "split"]) as bundle:
        manifest: Any = json.loads(json.dumps(bundle.manifest))
    digest = content_digest(manifest)
    assert digest == manifest["content_digest"]
    manifest["sections"]["golden.msgpack.zst"].update(sha256="0" * 64, length=1)
    manifest["layout_decision"].update(capacity_bytes=2**40, capacity_source="device", reason="too_large")
    manifest["self_test"]["executed"] = "graphs"
    assert content_digest(manifest) == digest
    for section in ("engine.onnx", "weights.safetensors", "tokenizer.json", "runtime.json"):
        changed = json.loads(json.dumps(manifest))
        changed["sections"][section]["sha256"] = "0" * 64
        assert content_digest(changed) != digest
    changed = json.loads(json.dumps(manifest))
    del changed["sections"]["golden.msgpack.zst"]
    assert content_digest(changed) != digest
