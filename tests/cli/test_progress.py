"""What progress remembers and how logs and machines see it."""

from __future__ import annotations

import io
import json
import time

import pytest

from rowpack.cli.console import Console
from rowpack.progress import JsonLinesProgress, LineProgress, Progress, WarningLines
from rowpack.units import format_bytes, format_seconds, parse_bytes
from rowpack_loaders.errors import Problem, RowpackError

WARNING = Problem("stray_file", "a stray file lies beside the index", where="model-9.safetensors")


def test_silent_progress_remembers_stages_and_warnings() -> None:
    progress = Progress()
    with progress.stage("weights", total_bytes=30) as stage:
        stage.advance(10)
        stage.advance(20)
    progress.warning(WARNING)
    assert [(stage.name, stage.done_bytes) for stage in progress.finished_stages] == [("weights", 30)]
    assert progress.warnings == [WARNING]


def test_a_failed_stage_is_not_remembered_as_finished() -> None:
    progress = Progress()
    with pytest.raises(ValueError, match="broken"), progress.stage("export"):
        raise ValueError("broken")
    assert progress.finished_stages == []


def test_log_lines_are_one_a_stage() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    with progress.stage("weights", detail="90 tensors", total_bytes=17_455_360) as stage:
        stage.advance(17_455_360)
    progress.warning(WARNING)
    progress.note("no verification")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("weights: 90 tensors, 17.5 MB, 0.")
    assert lines[1].startswith("warning: model-9.safetensors: a stray file")
    assert lines[2] == "no verification"


def test_log_lines_say_that_a_stage_failed() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError), LineProgress(stream).stage("export"):
        raise ValueError
    assert stream.getvalue().rstrip().endswith("(failed)")


def test_a_long_stage_is_not_silent_in_logs() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream, heartbeat_s=0.02)
    with progress.stage("engine", total_bytes=1000) as stage:
        stage.advance(400)
        deadline = time.monotonic() + 5
        while "so far" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "engine: 400 B of 1.00 kB" in stream.getvalue().splitlines()[0]
    assert "so far" in stream.getvalue()


def test_json_lines_tell_stage_event_time_and_bytes() -> None:
    stream = io.StringIO()
    progress = JsonLinesProgress(stream)
    with progress.stage("weights", detail="embedding", total_bytes=100) as stage:
        for _ in range(100):
            stage.advance(1)
    progress.warning(WARNING)
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["start", "end", "warning"], "quick advances are throttled"
    assert events[0]["bytes_done"] == 0
    assert events[0]["bytes_total"] == 100
    assert events[1]["bytes_done"] == 100
    assert events[1]["outcome"] == "done"
    assert 0 <= events[1]["elapsed_s"] < 60
    assert events[2]["code"] == "stray_file"


def test_json_lines_tell_a_slow_advance() -> None:
    stream = io.StringIO()
    progress = JsonLinesProgress(stream)
    with progress.stage("weights", total_bytes=2) as stage:
        time.sleep(0.3)
        stage.advance(1)
    assert json.loads(stream.getvalue().splitlines()[1])["event"] == "advance"


@pytest.mark.parametrize(
    ("text", "byte_count"),
    [("24GiB", 24 * 2**30), ("500 MB", 500_000_000), ("1048576", 2**20), ("1.5gb", 1_500_000_000), ("7b", 7)],
)
def test_sizes_are_read(text: str, byte_count: int) -> None:
    assert parse_bytes(text) == byte_count


@pytest.mark.parametrize("text", ["", "0", "0GiB", "-1GiB", "24 gigs", "GiB", "1e9", "١GiB", "0.4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(RowpackError) as caught:
        parse_bytes(text)
    assert caught.value.code == "bad_size"


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_501, "1.00 MB"),
        (17_455_360, "17.5 MB"),
    ],
)
def test_sizes_are_written(byte_count: int, text: str) -> None:
    assert format_bytes(byte_count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.42 s"), (12.34, "12.3 s"), (59.99, "1 min 00 s"), (185, "3 min 05 s")]
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_keeps_a_line_of_every_finished_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    side = Terminal()
    with Console(io.StringIO(), side, as_json=False).progress("auto") as progress:
        with progress.stage("weights", total_bytes=2000) as stage:
            stage.advance(2000)
        with pytest.raises(ValueError), progress.stage("engine"):
            raise ValueError
        progress.warning(WARNING)
    shown = side.getvalue()
    assert "✓" in shown
    assert "weights: 2.00 kB" in shown
    assert "✗" in shown
    assert "stray file" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is given back"


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("auto", LineProgress), ("lines", LineProgress), ("jsonl", JsonLinesProgress), ("none", WarningLines)],
)
def test_progress_is_chosen_by_mode_and_stream(mode: str, kind: type[Progress]) -> None:
    with Console(io.StringIO(), io.StringIO(), as_json=False).progress(mode) as progress:
        assert type(progress) is kind


@pytest.mark.parametrize("as_json", [False, True])
def test_without_progress_warnings_are_shown_unless_the_report_has_them(as_json: bool) -> None:
    side = io.StringIO()
    with Console(io.StringIO(), side, as_json=as_json).progress("none") as progress:
        with progress.stage("weights"):
            progress.note("about 5 MB of memory")
        progress.warning(WARNING)
    assert progress.warnings == [WARNING]
    assert side.getvalue() == ("" if as_json else f"warning: {WARNING}\n")
