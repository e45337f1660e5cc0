"""What a build says before it reads a weight: what it takes, whether that is there, and what would fit instead."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_checkpoints import published_checkpoint

from rowpack import BuildRequest, build
from rowpack import build_stages as stages
from rowpack.bundle import output_file
from rowpack.checkpoint import open_checkpoint
from rowpack.cli.application import main
from rowpack.engines import find_backend
from rowpack.fitting_builds import OtherBuild, WeightChoice, builds_of, fitting_on_device, fitting_on_host
from rowpack.host_need import NODE_BYTES, PIECES_HELD, PROCESS_BYTES, SESSIONS_BYTES, HostMemoryNeed
from rowpack.model_preparation import prepare_model
from rowpack.progress import Progress, Stage
from rowpack.units import format_bytes, parse_bytes
from rowpack_loaders import RowpackError

MB = 10**6
NAMED = re.compile(r"(--[^,(]+) \(([\d.]+ .?B)\)")


class Recording(Progress):
    """Remember notes, warnings and stages in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def note(self, text: str) -> None:
        """Remember a note."""
        self.events.append(f"note {text}")

    def warning(self, problem: Any) -> None:
        """Remember a warning by its code."""
        super().warning(problem)
        self.events.append(f"warning {problem.code}")

    def stage_started(self, stage: Stage) -> None:
        """Remember a stage by its name."""
        self.events.append(f"stage {stage.name}")


def request(checkpoint: Path, folder: Path, **changes: Any) -> BuildRequest:
    """Return a request that is not verified."""
    return BuildRequest(checkpoint, folder / "x.bundle", **{"verify": False, **changes})


def options_of(words: str) -> dict[str, Any]:
    """Return the fields of a request that the words of a command line stand for."""
    names = {
        "--precision": "precision",
        "--quantization": "quantization",
        "--head-quantization": "head_quantization",
        "--embedding-quantization": "embedding_quantization",
        "--max-sequence-length": "length",
    }
    found = dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    fields: dict[str, Any] = {names[word]: value for word, value in found.items()}
    length = fields.pop("length", None)
    return fields if length is None else {**fields, "max_sequence_length": int(length)}


def test_needs_are_told_before_a_weight_is_read(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    progress = Recording()
    report = build(request(rwkv_checkpoint, tmp_path), progress)
    notes = [event for event in progress.events if event.startswith("note")]
    assert len(notes) == 2
    engines = progress.events.index("stage decode engine")
    assert max(map(progress.events.index, notes)) < engines < progress.events.index("stage weights")
    assert report.host_memory.need.byte_count < 120 * MB
    assert notes[0].startswith(
        f"note this machine: about {format_bytes(report.host_memory.need.byte_count)} of memory ("
    )
    assert "most for weights" in notes[0]
    assert "the bundle's device: about 14.7 MB of memory (it has " in notes[1]
    assert report.memory.pair_bytes == pytest.approx(14.8 * MB, rel=0.01)


def test_a_device_that_is_too_small_is_warned_of_at_once_with_what_would_fit(
    qwen_checkpoint: Path, tmp_path: Path
) -> None:
    """Each build that is named is made, and takes what was said of it to a few percent."""
    progress = Recording()
    asked = request(qwen_checkpoint, tmp_path, target_memory_bytes=10 * MB)
    report = build(asked, progress)
    assert progress.events.count("warning device_memory_tight") == 1
    assert progress.events.index("warning device_memory_tight") < progress.events.index("stage decode engine")
    (warning,) = report.warnings
    assert warning.found is not None
    assert int(warning.found.split()[0]) == pytest.approx(report.memory.decode_bytes, rel=0.01)
    named = NAMED.findall(warning.remedy or "")
    assert [words.split()[3] for words, _ in named] == ["int8", "int8", "int4", "int4"]
    assert [("--embedding-quantization" in words) for words, _ in named] == [False, True, False, True]
    assert all("--max-sequence-length" in words for words, _ in named)
    for words, size in named:
        smaller = build(replace(asked, decoder_engine_layout="single", **options_of(words)))
        assert smaller.memory.decode_bytes == pytest.approx(parse_bytes(size), rel=0.1)


def test_where_nothing_fits_it_is_said(qwen_checkpoint: Path, tmp_path: Path) -> None:
    report = build(request(qwen_checkpoint, tmp_path, target_memory_bytes=MB))
    assert [warning.remedy for warning in report.warnings] == [
        "Nothing of this model fits: build for a device with more memory"
    ]


def test_the_choices_for_head_and_embedding_are_passed_on(tmp_path: Path) -> None:
    """What they save is a fifth to a half of the device; the build asked for is named with fewer tokens."""
    checkpoint, backend = published_checkpoint("qwen3_5-0.8b"), find_backend("ort")

    def fitting(capacity_bytes: int, **choices: str) -> list[str]:
        asked = request(tmp_path, tmp_path, **choices)
        builds = list(builds_of(checkpoint, prepare_model(checkpoint, asked), backend, asked))
        return [words.split(" (")[0] for words in fitting_on_device(builds, asked, 4096, capacity_bytes)]

    smallest = "--precision fp32 --quantization int4 --embedding-quantization int4"
    assert fitting(800 * MB) == [smallest]
    wider = "--precision fp32 --quantization int8 --embedding-quantization int8 --max-sequence-length 2240"
    assert fitting(900 * MB) == [wider, smallest]
    assert fitting(640 * MB) == [f"{smallest} --max-sequence-length 1216"]
    tables = {"quantization": "int4", "embedding_quantization": "int4"}
    assert fitting(640 * MB, **tables) == [f"{smallest} --max-sequence-length 1216"]
    assert fitting(720 * MB, **tables) == ["--decoder-engine-layout single"]
    with_head = {"quantization": "int8", "head_quantization": "int8"}
    assert fitting(900 * MB, **with_head) == [
        "--precision fp32 --quantization int8 --head-quantization int8 --embedding-quantization int8"
        " --max-sequence-length 2240",
        "--precision fp32 --quantization int4 --head-quantization int8 --embedding-quantization int4"
        " --max-sequence-length 1920",
    ]
    assert fitting(500 * MB) == []


@pytest.mark.parametrize("embedding", ["none", "int4"])
def test_what_is_said_of_a_build_is_what_it_counts_itself(
    embedding: str, qwen_checkpoint: Path, tmp_path: Path
) -> None:
    """Nothing but the constants of the graphs is between the two."""
    asked = request(
        qwen_checkpoint, tmp_path, quantization="int4", embedding_quantization=embedding, decoder_engine_layout="single"
    )
    with open_checkpoint(qwen_checkpoint) as checkpoint:
        builds = list(builds_of(checkpoint, prepare_model(checkpoint, asked), find_backend("ort"), asked))
    expected = build(asked).memory.decode_bytes
    sizes = [
        other.device_bytes(4096)
        for other in builds
        if other.choice.quantization == "int4" and other.choice.embedding_quantization == embedding
    ]
    assert sizes == [pytest.approx(expected, rel=0.01)]


def test_a_pair_is_named_with_fewer_tokens_where_they_are_all_that_is_too_much(tmp_path: Path) -> None:
    asked = request(tmp_path, tmp_path)
    fitting = fitting_on_device([other()], asked, 4000, 105 * MB, pair_bytes=102 * MB)
    assert fitting == ["--max-sequence-length 1984 (105 MB)", "--decoder-engine-layout single (105 MB)"]
    # Twice the weights: no sequence is short enough.
    assert fitting_on_device([other()], asked, 4000, 105 * MB, pair_bytes=200 * MB) == fitting[1:]


def other(precision: str = "fp32", quantization: str | None = None, **changes: Any) -> OtherBuild:
    """Return a build of a model with 100 MB of weights and caches of 1 kB a token."""
    facts: dict[str, Any] = {
        "stored_bytes": 100 * MB,
        "held_bytes": 100 * MB,
        "private_bytes": 0,
        "packing_bytes": 0,
        "state_bytes": MB,
        "key_value_bytes_per_token": 1000,
    }
    return OtherBuild(WeightChoice(precision, quantization), **{**facts, **changes})


def test_a_shorter_sequence_is_named_where_it_helps(tmp_path: Path) -> None:
    asked = request(tmp_path, tmp_path)
    small = other(quantization="int4", held_bytes=20 * MB)
    builds = [other(), small]
    assert fitting_on_device(builds, asked, 4000, 103 * MB) == [
        "--precision fp32 --max-sequence-length 1984 (103 MB)",
        "--precision fp32 --quantization int4 (25.0 MB)",
    ]
    assert fitting_on_device(builds, asked, 4000, 101 * MB) == ["--precision fp32 --quantization int4 (25.0 MB)"]
    assert fitting_on_device(builds, asked, 4000, 10 * MB) == []
    # One engine of two, with all of the sequence: only the second engine was too much.
    assert fitting_on_device([other()], asked, 4000, 110 * MB) == ["--decoder-engine-layout single (105 MB)"]
    recurrent = other(key_value_bytes_per_token=0)
    assert fitting_on_device([recurrent], asked, 4000, 100 * MB) == []


def test_builds_that_this_machine_has_room_for(tmp_path: Path) -> None:
    asked = request(tmp_path, tmp_path, precision="fp16", verify=True)
    builds = [
        other(),
        other("fp16", private_bytes=1000 * MB),
        other(quantization="int8", private_bytes=800 * MB, packing_bytes=100 * MB),
    ]
    need = HostMemoryNeed(
        node_count=1000,
        piece_bytes=16 * MB,
        builder_bytes=0,
        private_weight_bytes=1000 * MB,
        packing_bytes=0,
        session_count=2,
        live_activation_bytes=0,
        verify=True,
    )
    process = PROCESS_BYTES + 1000 * NODE_BYTES
    pieces = process + PIECES_HELD * 16 * MB
    plain, single = process + SESSIONS_BYTES, process + SESSIONS_BYTES + 1000 * MB
    choices = {
        available: fitting_on_host(builds, asked, need, split=True, available_bytes=available)
        for available in (single, single - 1, PROCESS_BYTES)
    }
    assert choices[single] == [
        f"--precision fp32 ({format_bytes(plain)})",
        f"--precision fp32 --quantization int8 ({format_bytes(plain + 900 * MB)})",
        f"--decoder-engine-layout single ({format_bytes(single)})",
        f"--no-verify ({format_bytes(pieces)})",
    ]
    assert [words.split(" (")[0] for words in choices[single - 1]] == [
        "--precision fp32",
        "--precision fp32 --quantization int8",
        "--no-verify",
    ]
    assert choices[PROCESS_BYTES] == []


def test_a_compiler_takes_less_for_smaller_weights(tmp_path: Path) -> None:
    asked = request(tmp_path, tmp_path, precision="fp16")
    builds = [other("fp16"), other("fp16", "fp8", stored_bytes=50 * MB)]
    need = HostMemoryNeed(
        node_count=0,
        piece_bytes=MB,
        builder_bytes=130 * MB,
        private_weight_bytes=0,
        packing_bytes=0,
        session_count=1,
        live_activation_bytes=0,
        verify=False,
    )
    fitting = fitting_on_host(builds, asked, need, split=False, available_bytes=PROCESS_BYTES + 100 * MB)
    assert fitting == [f"--precision fp16 --quantization fp8 ({format_bytes(PROCESS_BYTES + 80 * MB)})"]


@pytest.mark.parametrize(
    ("backend", "choices"),
    [
        ("ort", {"fp32", "fp32 int8", "fp32 int8 int8", "fp32 int4", "fp32 int4 int4", "fp16"}),
        ("openvino", {"fp32", "fp16", "bf16"}),
        ("trt", {"fp32", "fp16", "bf16", "fp16 fp8", "bf16 fp8", "fp16 nvfp4", "bf16 nvfp4"}),
    ],
)
def test_only_what_the_backend_runs_is_named(
    backend: str, choices: set[str], qwen_checkpoint: Path, tmp_path: Path
) -> None:
    chosen = find_backend(backend)
    with open_checkpoint(qwen_checkpoint) as checkpoint:
        asked = request(qwen_checkpoint, tmp_path, backend=backend)
        builds = list(builds_of(checkpoint, prepare_model(checkpoint, asked), chosen, asked))
    named = {build.choice: build for build in builds}
    words = [(choice.precision, choice.quantization, choice.embedding_quantization) for choice in named]
    assert {" ".join(filter(None, choice)) for choice in words} == choices
    held = {(choice.precision, choice.quantization): build.held_bytes for choice, build in named.items()}
    private = {(choice.precision, choice.quantization): build.private_bytes for choice, build in named.items()}
    assert private["fp32", None] == 0, "mapped or baked in"
    halves = "bf16" if backend == "openvino" else "fp16"
    narrower = held[halves, None] < held["fp32", None]
    assert narrower == (backend != "ort"), "ONNX Runtime widens halves"


def test_products_in_whole_numbers_are_named_where_they_were_asked_for(qwen_checkpoint: Path, tmp_path: Path) -> None:
    """They take about what weights in blocks do, of which every session packs its own."""
    with open_checkpoint(qwen_checkpoint) as checkpoint:
        asked = request(qwen_checkpoint, tmp_path, quantization="w8a8")
        builds = list(builds_of(checkpoint, prepare_model(checkpoint, asked), find_backend("ort"), asked))
    found = {build.choice.options: build for build in builds}
    whole, blocks = (found[f"--precision fp32 --quantization {word}"] for word in ("w8a8", "int8"))
    assert whole.private_bytes == 0
    assert blocks.private_bytes > 0
    assert whole.stored_bytes < blocks.stored_bytes
    assert whole.held_bytes == whole.stored_bytes


def refusal(wanted: BuildRequest, folder: Path) -> RowpackError:
    """Return the error of a build that must leave nothing behind."""
    with pytest.raises(RowpackError) as caught:
        build(wanted)
    assert list(folder.iterdir()) == []
    return caught.value


def test_a_machine_without_room_is_told_what_would_fit(
    rwkv_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = request(rwkv_checkpoint, tmp_path, precision="fp16", decoder_engine_layout="split", verify=True)
    monkeypatch.setattr(stages, "available_host_memory", lambda: PROCESS_BYTES)
    assert (refusal(halves, tmp_path).problem.remedy or "").startswith("Nothing of this model fits: free memory")
    expected = int((refusal(halves, tmp_path).problem.expected or "").split()[1])
    monkeypatch.setattr(stages, "available_host_memory", lambda: expected - 1)
    error = refusal(halves, tmp_path)
    assert error.code == "host_memory_insufficient"
    assert error.problem.remedy is not None
    named = [words for words, _ in NAMED.findall(error.problem.remedy)]
    assert {"--precision fp32", "--decoder-engine-layout single", "--no-verify"} <= set(named)
    assert error.problem.remedy.endswith("--ignore-host-memory tries all the same")


def test_memory_and_disk_are_told_in_one_report(
    rwkv_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        """A file system with hardly any room."""

        f_blocks, f_bavail, f_frsize = 1000, 1, 4096

    monkeypatch.setattr(output_file.os, "statvfs", lambda path: Small())
    error = refusal(request(rwkv_checkpoint, tmp_path), tmp_path)
    assert (error.code, error.problem.found) == ("disk_full", "4096 bytes free")
    monkeypatch.setattr(stages, "available_host_memory", lambda: MB)
    error = refusal(request(rwkv_checkpoint, tmp_path), tmp_path)
    assert error.code == "build_does_not_fit"
    assert [problem.code for problem in error.problems] == ["host_memory_insufficient", "disk_full"]
    assert all(problem.found and problem.expected and problem.remedy for problem in error.problems)


def test_the_command_line_tells_needs_before_the_weights(
    rwkv_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", str(rwkv_checkpoint), "-o", str(tmp_path / "x.bundle"), "--no-verify", "--json"]
    assert main([*words, "--progress", "lines"]) == 0
    printed = capsys.readouterr()
    lines = [line.split(":")[0] for line in printed.err.splitlines()]
    assert lines.index("this machine") + 1 == lines.index("the bundle's device") < lines.index("weights")
    report = json.loads(printed.out)
    assert report["host_memory"]["estimated_bytes"] == max(report["host_memory"]["estimated_stage_bytes"].values())
    assert report["memory"]["pair_bytes"] > 0


def test_the_command_line_refuses_with_what_would_fit(
    rwkv_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "available_host_memory", lambda: PROCESS_BYTES + 60 * MB)
    words = ["build", str(rwkv_checkpoint), "-o", str(tmp_path / "x.bundle"), "--precision", "fp16"]
    assert main([*words, "--json", "--progress", "none"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "host_memory_insufficient"
    assert "--no-verify" in error["remedy"]
    assert main([*words, "--progress", "lines"]) == 1
    told = capsys.readouterr().err
    assert told.index("this machine: about ") < told.index("[host_memory_insufficient]") < told.index("What would fit")
    assert list(tmp_path.iterdir()) == []
