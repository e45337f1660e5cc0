"""Bundles of compiled engines, with a pretended library: what is in them, and that a failure leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_models import CACHE_ROWS, PretendedLibrary

from rowpack import BuildRequest, build, build_stages
from rowpack.engines.options import EngineOptions
from rowpack.progress import Progress
from rowpack_loaders import RowpackError, open_bundle, validate

Pretend = Callable[..., PretendedLibrary]


@pytest.fixture
def request_for(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> Callable[..., BuildRequest]:
    """Return a function that makes a build request for the pretended library's backend."""

    def make(library: PretendedLibrary, family: str = "rwkv", **options: Any) -> BuildRequest:
        monkeypatch.setattr(build_stages, "find_backend", lambda name: library.backend)
        folder = tmp_path / "out"
        folder.mkdir(exist_ok=True)
        defaults: dict[str, Any] = {"max_sequence_length": CACHE_ROWS, "prefill_rows": 16, "verify": False}
        return BuildRequest(
            tiny_checkpoints[family],
            folder / "made.bundle",
            backend=library.backend.name,
            **{**defaults, **options},
        )

    return make


@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_bundle_of_plans(pretend: Pretend, request_for: Any, family: str, layout: str) -> None:
    request = request_for(pretend(), family, decoder_engine_layout=layout, verify=True)
    report = build(request)
    assert validate(request.output).errors == []
    roles = ["decode"] if layout == "single" else ["decode", "prefill"]
    assert list(report.engine_builds) == roles
    assert report.executed == "graphs"
    with open_bundle(request.output) as bundle:
        sections = set(bundle.sections)
        manifest: dict[str, Any] = bundle.manifest
        assert bundle.backend == "trt"
    assert {name for name in sections if name.endswith((".plan", ".onnx", ".safetensors"))} == {
        {"decode": "engine.plan", "prefill": "prefill.plan"}[role] for role in roles
    }
    assert manifest["weights"] is None
    assert manifest["self_test"]["executed"] == "graphs"
    assert [engine["section"] for engine in manifest["engines"].values()] == sorted(
        {"decode": "engine.plan", "prefill": "prefill.plan"}[role] for role in roles
    )
    assert manifest["layout_decision"]["copies"] == 2
    for use, engine in manifest["engines"].items():
        shapes = {tensor["name"]: tensor["shape"] for tensor in engine["inputs"]}
        if family == "qwen3_5":
            assert shapes["cache_k_0"] == [CACHE_ROWS, 8]
            columns = CACHE_ROWS + 1 if use == "decode" else "max_cache_length+rows"
            assert shapes["attention_mask"][1] == columns
        assert ("profile" in engine and bool(engine["profile"])) == (use == "prefill")


def test_auto_needs_to_know_the_targets_memory(pretend: Pretend, request_for: Any) -> None:
    """The memory of the build machine says nothing about the GPU the bundle is for."""
    unknown = build(request_for(pretend()))
    assert (unknown.decoder_engine_layout, unknown.layout_decision["reason"]) == ("single", "capacity_unknown")
    known = build(request_for(pretend(), target_memory_bytes=2**30))
    assert (known.decoder_engine_layout, known.layout_decision["reason"]) == ("split", "fits")


@pytest.mark.parametrize("encoding", ["raw", "shared"])
def test_the_compilers_own_count_decides(pretend: Pretend, request_for: Any, encoding: Any) -> None:
    """Counted from the graphs the pair fits; what the library baked in does not, so the prefill engine is left out."""
    weights = {"Total Weights": 500 * 2**20, "Total Activation": 300, "Max Scratch": 200}
    options: dict[str, Any] = {"engine_options": EngineOptions(plan_encoding=encoding), "verify": True}
    for target_memory_bytes, layout, reason in (
        (1250 * 2**20, "split", "fits"),
        (1250 * 2**20 - 1, "single", "does_not_fit"),
    ):
        request = request_for(pretend(memory=weights), target_memory_bytes=target_memory_bytes, **options)
        report = build(request)
        decision = report.layout_decision
        assert (report.decoder_engine_layout, decision["layout"], decision["reason"]) == (layout, layout, reason)
        assert decision["engine_weight_bytes"] == {"decode": 500 * 2**20, "prefill": 500 * 2**20}
        assert decision["needed_bytes"] == 1000 * 2**20
        assert validate(request.output).errors == []
        with open_bundle(request.output) as bundle:
            assert ("prefill.plan" in bundle.sections) == (layout == "split")
    forced = build(request_for(pretend(memory=weights), target_memory_bytes=2**20, decoder_engine_layout="split"))
    assert (forced.decoder_engine_layout, forced.layout_decision["override"]) == ("split", True)


@pytest.mark.parametrize(("quantization", "layout"), [("fp8", "split"), ("nvfp4", "single")])
def test_full_tensorrt_takes_four_bits_for_one_row_only(
    pretend: Pretend, request_for: Any, quantization: str, layout: str
) -> None:
    """Through 11.4 it cannot lower such products over a free row count: the decision says so."""
    options = {"precision": "fp16", "quantization": quantization, "target_memory_bytes": 2**34}
    report = build(request_for(pretend(device="12.0"), **options))
    assert report.decoder_engine_layout == layout
    assert report.layout_decision["reason"] == ("fits" if layout == "split" else "fixed_row_count_weights")
    if layout == "single":
        with pytest.raises(RowpackError, match="split_impossible"):
            build(request_for(pretend(device="12.0"), decoder_engine_layout="split", **options))


def test_two_builds_give_one_file(pretend: Pretend, request_for: Any) -> None:
    request = request_for(pretend(), "qwen3_5", decoder_engine_layout="split")
    digests = {build(request).file_digest for _ in range(2)}
    assert len(digests) == 1


def test_the_weights_beside_the_bundle_are_gone_afterwards(pretend: Pretend, request_for: Any) -> None:
    request = request_for(pretend(), "qwen3_5", verify=True)
    build(request)
    assert list(request.output.parent.iterdir()) == [request.output]


def test_every_engine_is_a_stage(pretend: Pretend, request_for: Any) -> None:
    progress = Progress()
    build(request_for(pretend(), decoder_engine_layout="split"), progress)
    stages = {stage.name: stage.done_bytes for stage in progress.finished_stages}
    assert stages["decode engine"] > 0
    assert stages["prefill engine"] > 0


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ({"built": False}, "engine_build_failed"),
        ({"log": [["ERROR", "no"]], "filler_bytes": 2**22}, "engine_build_failed"),
        ({"signal": "SIGSEGV"}, "engine_builder_crashed"),
        ({"rename": {"logits": "scores"}}, "engine_contract"),
    ],
)
def test_a_failed_build_leaves_what_was_there(pretend: Pretend, request_for: Any, behaviour: Any, code: str) -> None:
    request = request_for(pretend(**behaviour))
    request.output.write_bytes(b"the bundle of yesterday")
    with pytest.raises(RowpackError) as caught:
        build(request)
    assert caught.value.code == code
    assert list(request.output.parent.iterdir()) == [request.output]
    assert request.output.read_bytes() == b"the bundle of yesterday"


def test_an_option_that_cannot_be_is_refused_before_the_checkpoint_is_read(pretend: Pretend, request_for: Any) -> None:
    options = EngineOptions(compute_capabilities=("8.9",))
    request = request_for(pretend(), engine_options=options)
    (request.output.parent.parent / "elsewhere").mkdir()
    with pytest.raises(RowpackError, match="engine_option_unsupported"):
        build(BuildRequest(Path("no/such/checkpoint"), request.output, backend="trt", engine_options=options))
    assert list(request.output.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("free_bytes", "encoding"), [(16 * 2**20, None), (100 * 2**20, "shared"), (100 * 2**20, "raw")]
)
def test_a_disk_that_fills_while_a_plan_is_written(
    pretend: Pretend,
    request_for: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    encoding: Any,
) -> None:
    """The decode plan on its way into the bundle, and the prefill plan into a scratch file or the bundle."""
    process_file = tmp_path / "process"
    request = request_for(
        pretend(filler_bytes=64 * 2**20, process_file=str(process_file)),
        decoder_engine_layout="split",
        engine_options=EngineOptions(plan_encoding=encoding),
    )
    written = 0
    write = os.pwrite

    def filling(descriptor: int, data: Any, offset_bytes: int) -> int:
        nonlocal written
        written += len(data)
        if written > free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset_bytes)

    monkeypatch.setattr(os, "pwrite", filling)
    with pytest.raises(RowpackError) as caught:
        build(request)
    assert caught.value.code == "disk_full"
    assert list(request.output.parent.iterdir()) == []
    assert not Path(f"/proc/{process_file.read_text('utf-8')}").exists()


def test_an_interrupt_ends_the_compiler_too(
    pretend: Pretend, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """Ctrl-C while the library compiles: exit status 130, no bundle, no scratch file, no process."""
    compiling = tmp_path / "compiling"
    library = pretend("trt_rtx", hang=str(compiling))
    folder = tmp_path / "out"
    folder.mkdir()
    paths = [str(library.folder), *(path for path in sys.path if path)]
    command = [sys.executable, "-m", "rowpack", "build", str(tiny_checkpoints["rwkv"]), "-o", str(folder / "a.bundle")]
    with subprocess.Popen(
        [*command, "--backend", "trt_rtx", "--max-sequence-length", "64"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not compiling.exists() or not compiling.read_text("utf-8"):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()  # where the interrupt did nothing, this test fails and does not hang
    assert process.returncode == 130
    assert list(folder.iterdir()) == []
    assert not Path(f"/proc/{compiling.read_text('utf-8')}").exists()


def test_a_killed_build_takes_its_compiler_along(
    pretend: Pretend, tiny_checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    compiling = tmp_path / "compiling"
    library = pretend("trt_rtx", hang=str(compiling))
    paths = [str(library.folder), *(path for path in sys.path if path)]
    command = [sys.executable, "-m", "rowpack", "build", str(tiny_checkpoints["rwkv"])]
    with subprocess.Popen(
        [*command, "-o", str(tmp_path / "a.bundle"), "--backend", "trt_rtx", "--max-sequence-length", "64"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 60
        while not compiling.exists() or not compiling.read_text("utf-8"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
        process.wait(timeout=30)
    gone = Path(f"/proc/{compiling.read_text('utf-8')}")
    while gone.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not gone.exists() or "zombie" in (gone / "status").read_text("ascii")
    assert not (tmp_path / "a.bundle").exists()
