"""What a build writes, in the bundle and beside it: told and asked for before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_checkpoints import published_checkpoint

from rowpack import BuildRequest, build
from rowpack.bundle import output_file
from rowpack.disk_need import disk_need
from rowpack.engine_stage import scratch_file
from rowpack.engines import find_backend
from rowpack.engines.options import EngineOptions
from rowpack.gate import UNKNOWN_CAPACITY, Layout, WeightNeed, decide_layout
from rowpack.model_preparation import prepare_model
from rowpack.progress import Progress, Stage
from rowpack.units import format_bytes
from rowpack_loaders import RowpackError

MB = 10**6


class Recording(Progress):
    """Remember notes and stages in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def note(self, text: str) -> None:
        """Remember a note."""
        self.events.append(text)

    def stage_started(self, stage: Stage) -> None:
        """Remember a stage by its name."""
        self.events.append(stage.name)


def needed(layout: Layout = "single", **changes: Any) -> tuple[int, int]:
    """Return the need of a build of 0.8B in bundle and scratch, each in bytes of its weights, rounded."""
    wanted = BuildRequest(Path("checkpoint"), Path("x.bundle"), **changes)
    prepared = prepare_model(published_checkpoint("qwen3_5-0.8b"), wanted)
    decision = decide_layout(
        layout,
        weights=WeightNeed(1, 1, {"decode": 1}, 1),
        state_bytes=0,
        key_value_bytes_per_token=0,
        capacity=UNKNOWN_CAPACITY,
    )
    need = disk_need(wanted, prepared, find_backend(wanted.backend), decision)
    return need.bundle_bytes // prepared.plan.tensor_bytes, need.scratch_bytes // prepared.plan.tensor_bytes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, 0)),
        ({"precision": "fp16", "layout": "split"}, (1, 0)),
        # The float32 values that four bits stand for, five to eight times their bytes with embedding and norms.
        ({"quantization": "int4", "embedding_quantization": "int4"}, (1, 6)),
        ({"quantization": "int4", "embedding_quantization": "int4", "verify": False}, (1, 0)),
        # The compiler reads the weights from a file; a second plan is one more until it is stored as what differs.
        ({"backend": "trt", "precision": "fp16"}, (1, 1)),
        ({"backend": "trt", "precision": "fp16", "layout": "split"}, (1, 2)),
        (
            {
                "backend": "trt",
                "precision": "fp16",
                "layout": "split",
                "engine_options": EngineOptions(plan_encoding="raw"),
            },
            (2, 1),
        ),
    ],
)
def test_what_lies_beside_the_bundle_counts(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    assert needed(**changes) == expected


def test_a_disk_without_room_for_the_reference_is_refused_before_anything_is_written(
    qwen_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        """A file system with 10 MB of room."""

        f_blocks, f_bavail, f_frsize = 10 * MB // 4096, 10 * MB // 4096, 4096

    monkeypatch.setattr(output_file.os, "statvfs", lambda path: Small())
    progress = Recording()
    wanted = BuildRequest(qwen_checkpoint, tmp_path / "x.bundle", quantization="int4")
    with pytest.raises(RowpackError) as caught:
        build(wanted, progress)
    assert caught.value.code == "disk_full"
    assert progress.events[-2].startswith("this machine: "), "the check comes after the notes, and nothing after it"
    assert list(tmp_path.iterdir()) == []
    assert build(replace(wanted, verify=False)).path.exists()


def test_the_figure_is_what_is_written(qwen_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rowpack import reference_model

    written: list[int] = []

    def measured(*arguments: Any) -> Any:
        kept = scratch_file(*arguments)
        written.append(arguments[2])
        return kept

    monkeypatch.setattr(reference_model, "scratch_file", measured)
    progress = Recording()
    report = build(BuildRequest(qwen_checkpoint, tmp_path / "x.bundle", quantization="int4"), progress)
    (beside,) = written
    (told,) = [event for event in progress.events if event.startswith("this machine: ")]
    weights = next(stage.done_bytes for stage in report.stages if stage.name == "weights")
    assert told.endswith(
        f"{format_bytes(weights)} of weights to write, and {format_bytes(beside)} beside them for as long as it takes"
    )
