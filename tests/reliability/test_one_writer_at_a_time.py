"""Writers of one output at once: one wins whole, the others say so, and nothing of them is left."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import BUILD_OPTIONS

from rowpack import BuildRequest, build
from rowpack.bundle.output_file import OutputFile, remove_stale
from rowpack.cli import main
from rowpack_loaders import validate
from rowpack_loaders.errors import RowpackError


def test_a_second_build_says_that_the_output_is_busy(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.bundle"
    arguments = ["build", str(tiny_checkpoints["rwkv"]), "-o", str(target), "--json", "--progress", "none"]
    first = OutputFile(target)
    try:
        assert main(arguments) == 1
    finally:
        first.discard()
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["where"]) == ("output_busy", str(target))
    assert "another output" in error["remedy"]
    assert list(tmp_path.iterdir()) == []
    assert main(arguments) == 0


def test_of_many_writers_one_holds_the_target(tmp_path: Path) -> None:
    target = tmp_path / "out.bundle"
    outcomes: Counter[str] = Counter()
    holders = threading.Semaphore(1)
    start = threading.Barrier(6)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            write_rounds()
        except BaseException as error:
            failures.append(error)
            start.abort()

    def write_rounds() -> None:
        for round_number in range(40):
            start.wait()
            try:
                file = OutputFile(target)
            except RowpackError as error:
                outcomes[error.code] += 1
                continue
            alone = holders.acquire(blocking=False)
            outcomes["alone" if alone else "together"] += 1
            file.write(memoryview(b"%04d" % round_number), 0)
            if alone:
                holders.release()
            file.publish()

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert outcomes["together"] == 0
    assert outcomes["alone"] >= 40, "each round has a winner"
    assert outcomes.keys() <= {"alone", "together", "output_busy"}
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_takes_the_name_of_a_published_one_is_not_taken_for_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer publishes between a second one's opening and locking, and a third creates its own."""
    target = tmp_path / "out.bundle"
    first = OutputFile(target)
    first.write(memoryview(b"first"), 0)
    third: list[OutputFile] = []
    flock = fcntl.flock

    def slow_flock(descriptor: int, operation: int) -> None:
        if not third:
            monkeypatch.setattr(fcntl, "flock", flock)
            first.publish()
            third.append(OutputFile(target))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    assert remove_stale(target) == []
    third[0].write(memoryview(b"third"), 0)
    third[0].publish()
    assert target.read_bytes() == b"third"


def test_where_locks_are_unknown_writers_stay_apart_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    target = tmp_path / "out.bundle"
    first, second = OutputFile(target), OutputFile(target)
    assert first.temporary_path != second.temporary_path
    first.write(memoryview(b"first"), 0)
    second.write(memoryview(b"second"), 0)
    first.publish()
    assert target.read_bytes() == b"first"
    second.publish()
    assert target.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_is_synchronised_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.bundle"
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        is_folder = Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path
        steps.append("folder" if is_folder else "file")
        fsync(descriptor)

    def recorded_replace(path: Path, new: Path) -> Path:
        steps.append("rename")
        return replace(path, new)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    file = OutputFile(target)
    file.write(memoryview(b"x"), 0)
    assert steps == []
    file.publish()
    assert steps == ["file", "rename", "folder"]


def test_the_companions_of_a_killed_build_are_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "out.bundle"
    companion = tmp_path / ".out.bundle.weights.rowpack-part"
    stranger = tmp_path / ".other.bundle.rowpack-part"
    for path in (companion, stranger, tmp_path / ".out.bundle.rowpack-part"):
        path.write_bytes(b"half")
    OutputFile(target).discard()
    assert list(tmp_path.iterdir()) == [stranger], "another target's writer sees to its own"


@pytest.mark.slow
def test_two_builds_at_once_leave_one_whole_bundle(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "out.bundle"
    wanted = build(BuildRequest(tiny_checkpoints["rwkv"], tmp_path / "alone.bundle", **BUILD_OPTIONS)).path.read_bytes()
    command = [sys.executable, "-m", "rowpack", "build", str(tiny_checkpoints["rwkv"]), "-o", str(target), "--json"]
    command += ["--max-sequence-length", "64", "--prefill-rows", "16", "--target-memory", "1GiB", "--model-id", "tiny"]
    environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
    for _ in range(3):
        target.unlink(missing_ok=True)
        builds = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(3)
        ]
        printed = [json.loads(process.communicate(timeout=120)[0]) for process in builds]
        codes = [result["error"]["code"] for result in printed if "error" in result]
        assert set(codes) <= {"output_busy"}
        assert len(codes) < 3, "one of them wins"
        assert target.read_bytes() == wanted
        assert validate(target).errors == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.bundle", "out.bundle"]
