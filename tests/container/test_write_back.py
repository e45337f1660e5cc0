"""What is written goes to the disk meanwhile: no failure there is lost, no thread stays, and nothing half-written."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_writers import run_until_killed

from rowpack.bundle import BundleWriter, write_back
from rowpack.bundle.output_file import OutputFile
from rowpack_loaders.errors import RowpackError

PIECE = memoryview(b"x" * 600)
PATIENCE_S = 20.0
REFUSED = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.EIO: "output_write_failed"}


class Disk:
    """Stands for fdatasync: each call waits for :meth:`end_calls`, and then fails where there is a number for it."""

    def __init__(self) -> None:
        self.number = 0
        self.sizes: list[int] = []
        self.begun = threading.Event()
        self._end = threading.Event()

    def __call__(self, descriptor: int) -> None:
        """Remember the size of the file, wait, and fail or not."""
        self.sizes.append(os.fstat(descriptor).st_size)
        self.begun.set()
        assert self._end.wait(PATIENCE_S)
        os.fstat(descriptor)  # raises where it was closed meanwhile
        if self.number:
            raise OSError(self.number, os.strerror(self.number))

    def end_calls(self) -> None:
        """Let the call that waits and all later ones go."""
        self._end.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that every second piece is sent to."""
    disk = Disk()
    monkeypatch.setattr(write_back, "STRETCH_BYTES", 2 * len(PIECE))
    monkeypatch.setattr(os, "fdatasync", disk)
    yield disk
    disk.end_calls()
    assert threads() == [], "a thread is left"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "x.bundle"


def threads() -> list[str]:
    """Return the names of the threads that write back."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("write-back")]


def write_pieces(file: OutputFile, count: int) -> None:
    """Write pieces behind what there is."""
    start = file.temporary_path.stat().st_size
    for index in range(count):
        file.write(PIECE, start + index * len(PIECE))


def write_until_refused(file: OutputFile) -> None:
    """Write the same piece again until a call of the thread has ended and is told."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        file.write(PIECE, 0)


def test_a_file_goes_to_the_disk_while_it_is_written(target: Path, disk: Disk) -> None:
    """One call at a time; what is written meanwhile waits for the next."""
    file = OutputFile(target)
    write_pieces(file, 1)
    assert threads() == []
    write_pieces(file, 1)
    assert disk.begun.wait(PATIENCE_S)
    write_pieces(file, 7)
    assert disk.sizes == [2 * len(PIECE)]
    disk.end_calls()
    until = time.monotonic() + PATIENCE_S
    while len(disk.sizes) < 2 and time.monotonic() < until:
        file.write(PIECE, 0)
    assert disk.sizes[:2] == [2 * len(PIECE), 9 * len(PIECE)]
    file.publish()
    assert target.read_bytes() == bytes(PIECE) * 9


def test_a_file_that_is_thrown_away_is_not_sent(target: Path, disk: Disk) -> None:
    file = OutputFile(target, will_publish=False)
    write_pieces(file, 9)
    assert threads() == []
    file.discard()
    assert disk.sizes == []


@pytest.mark.parametrize("number", REFUSED)
def test_a_failure_is_told_by_a_later_write_and_by_all_that_follows(target: Path, disk: Disk, number: int) -> None:
    """The system tells it once: the fsync at the end, which succeeds here, would know nothing of it."""
    target.write_bytes(b"old")
    disk.number = number
    disk.end_calls()
    file = OutputFile(target)
    for action in (write_until_refused, write_until_refused, OutputFile.publish):
        with pytest.raises(RowpackError) as caught:
            action(file)
        assert caught.value.code == REFUSED[number]
    file.discard()
    assert len(disk.sizes) == 1
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("number", REFUSED)
def test_a_failure_that_comes_while_the_file_is_published_ends_it(target: Path, disk: Disk, number: int) -> None:
    disk.number = number
    file = OutputFile(target)
    write_pieces(file, 2)
    assert disk.begun.wait(PATIENCE_S)
    threading.Timer(0.05, disk.end_calls).start()
    with pytest.raises(RowpackError) as caught:
        file.publish()
    assert caught.value.code == REFUSED[number]
    assert not target.exists()
    file.discard()
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("number", REFUSED)
def test_a_bundle_whose_bytes_the_disk_refuses_is_not_there(target: Path, disk: Disk, number: int) -> None:
    disk.number = number
    disk.end_calls()
    with pytest.raises(RowpackError) as caught, BundleWriter(target, family="rwkv", backend="ort") as bundle:
        bundle.add_section("a", PIECE, media_type="x")
        bundle.add_section("b", bytes(PIECE) * 2, media_type="x")
        bundle.finish({}, {})
    assert caught.value.code == REFUSED[number]
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("end", [OutputFile.publish, OutputFile.discard])
def test_the_file_is_closed_after_the_call_that_is_under_way(target: Path, disk: Disk, end: object) -> None:
    file = OutputFile(target)
    write_pieces(file, 2)
    assert disk.begun.wait(PATIENCE_S)
    assert len(threads()) == 1
    threading.Timer(0.05, disk.end_calls).start()
    assert callable(end)
    end(file)
    assert threads() == []
    file.discard()


def test_a_discarded_file_has_nothing_to_tell(target: Path, disk: Disk) -> None:
    """It was to be removed, whatever became of its bytes."""
    disk.number = errno.EIO
    file = OutputFile(target)
    write_pieces(file, 2)
    disk.end_calls()
    file.discard()
    assert list(target.parent.iterdir()) == []


def test_a_writer_that_is_killed_leaves_what_the_next_removes(target: Path) -> None:
    """Also in the middle of a call."""
    program = (
        "import os, signal, sys\n"
        "from rowpack.bundle import BundleWriter, write_back\n"
        "write_back.STRETCH_BYTES = 1000\n"
        "os.fdatasync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "writer = BundleWriter(sys.argv[1], family='rwkv', backend='ort')\n"
        "writer.add_section('a', b'x' * 100000, media_type='x')\n"
        "signal.pause()\n"
    )
    run_until_killed(program, target)
    assert [path.name for path in target.parent.iterdir()] == [".x.bundle.rowpack-part"]
    OutputFile(target).discard()
    assert list(target.parent.iterdir()) == []
