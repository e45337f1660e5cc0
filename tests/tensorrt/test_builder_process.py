"""The builder's child process when it, its messages or its library misbehave: an error with a reason, and no process.

A child of these tests is a small program of their own where the pretended library cannot misbehave in the way wanted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_models import Preparation, PretendedLibrary, build_plan

from rowpack.engines.options import NO_OPTIONS
from rowpack.engines.tensorrt import builder_process
from rowpack.engines.tensorrt.builder_child import PlanPipe
from rowpack.engines.tensorrt.builder_process import BuilderProcess, ask_library
from rowpack_loaders.errors import RowpackError

Pretend = Callable[..., PretendedLibrary]
Instead = Callable[..., None]

DONE = {
    "kind": "done",
    "parsed": True,
    "built": True,
    "written_bytes": 4,
    "writer_error": None,
    "seconds": 1.0,
    "peak_resident_bytes": 2**20,
}


@pytest.fixture(scope="module")
def rwkv(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Preparation:
    return Preparation(tiny_checkpoints["rwkv"], tmp_path_factory.mktemp("rwkv"))


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Instead:
    """Return a function that replaces the child's program: it sends ``lines``, writes ``plan`` and ends."""

    def replace(*lines: Any, plan: bytes = b"", last_words: str = "") -> None:
        sent = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        program = tmp_path / "child.py"
        program.write_text(
            "import os, socket\n"
            "channel = socket.socket(fileno=os.dup(0))\n"
            "channel.recv(1 << 20)\n"
            f"channel.sendall({sent!r})\n"
            f"os.write(1, {plan!r})\n"
            f"{last_words}\n",
            "utf-8",
        )
        monkeypatch.setattr(builder_process, "CHILD_PROGRAM", program)

    return replace


def failure(pretend: Pretend, preparation: Preparation, **behaviour: Any) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        build_plan(pretend(**behaviour).backend, preparation)
    return caught.value


def is_gone(process_file: Path) -> bool:
    return not Path(f"/proc/{process_file.read_text('utf-8')}").exists()


def test_a_child_that_keeps_to_the_rules_passes(pretend: Pretend, rwkv: Preparation, instead: Instead) -> None:
    """The programs below differ from this one in one thing each."""
    instead(DONE, plan=b"plan")
    plan, engine, _ = build_plan(pretend().backend, rwkv)
    assert plan == b"plan"
    assert engine.measurement is not None and engine.measurement.peak_resident_bytes == 2**20


@pytest.mark.parametrize(
    ("plan", "done"),
    [
        (b"pla", {}),
        (b"plan and garbage", {}),
        (b"garbage and plan", {}),
        (b"", {}),
        (b"plan", {"writer_error": "[Errno 28] No space left on device"}),
    ],
    ids=["cut off", "something after it", "something before it", "nothing", "a writer that failed"],
)
def test_a_plan_that_is_not_what_was_written(
    pretend: Pretend, rwkv: Preparation, instead: Instead, plan: bytes, done: dict[str, Any]
) -> None:
    instead({**DONE, **done}, plan=plan)
    error = failure(pretend, rwkv)
    assert error.code == "plan_incomplete"
    assert str(done.get("writer_error", f"{len(plan)} bytes")) in str(error.problem.found)


@pytest.mark.parametrize("line", [b"Segmentation fault\n", b"\xff\xfe\n", b"5\n", b"{}\n", b'["done"]\n', b"\n"])
def test_a_line_that_is_no_message_fails_the_build(
    pretend: Pretend, rwkv: Preparation, instead: Instead, line: bytes
) -> None:
    instead(line, DONE, plan=b"plan")
    error = failure(pretend, rwkv)
    assert error.code == "engine_build_failed"
    assert "no message" in str(error.problem.found)


def test_a_child_that_ends_without_a_word(pretend: Pretend, rwkv: Preparation, instead: Instead) -> None:
    instead()
    error = failure(pretend, rwkv)
    assert error.code == "engine_builder_crashed"
    assert str(error.problem.found).startswith("status 0")


def test_a_child_that_is_killed_in_the_middle_of_its_plan(
    pretend: Pretend, rwkv: Preparation, instead: Instead
) -> None:
    instead(plan=b"pl", last_words="os.kill(os.getpid(), 9)")
    assert failure(pretend, rwkv).code == "engine_build_out_of_memory"
    instead(plan=b"pl", last_words="os.kill(os.getpid(), 15)")
    error = failure(pretend, rwkv)
    assert error.code == "engine_builder_crashed"
    assert "SIGTERM" in str(error.problem.found)


def test_a_line_that_is_cut_off_is_no_message(pretend: Pretend, rwkv: Preparation, instead: Instead) -> None:
    instead(json.dumps(DONE).encode(), plan=b"plan")
    assert failure(pretend, rwkv).code == "engine_builder_crashed"


def test_a_child_without_memory_says_so(pretend: Pretend, rwkv: Preparation, tmp_path: Path) -> None:
    process_file = tmp_path / "process"
    error = failure(pretend, rwkv, allocate_bytes=2**62, process_file=str(process_file))
    assert error.code == "engine_build_out_of_memory"
    assert "MemoryError" in str(error.problem.found)
    assert is_gone(process_file)


def test_a_library_that_went_away_after_it_was_asked(pretend: Pretend, rwkv: Preparation) -> None:
    """Removed or upgraded while the checkpoint was read: the import's own words are told."""
    library = pretend()
    builder = library.backend.open_builder(NO_OPTIONS)
    pretend(import_error="libnvinfer.so.11: cannot open shared object file")
    with pytest.raises(RowpackError) as caught:
        list(builder.build_engine(rwkv.orders["decode"], rwkv.weights, print).pieces())
    assert caught.value.code == "engine_builder_crashed"
    assert "libnvinfer.so.11" in str(caught.value.problem.found)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("cancelled")], ids=["interrupt", "error"])
def test_a_build_that_is_cancelled_leaves_no_process(
    pretend: Pretend, rwkv: Preparation, tmp_path: Path, error: BaseException
) -> None:
    """From whoever is told of progress, in the middle of the library's work."""
    process_file = tmp_path / "process"
    library = pretend(process_file=str(process_file), hang=str(tmp_path / "hangs"))

    def cancel(text: str) -> None:
        if "Building engine" in text:
            while not process_file.exists() or not process_file.read_text("utf-8"):
                pass
            raise error

    builder = library.backend.open_builder(NO_OPTIONS)
    with pytest.raises(type(error)):
        list(builder.build_engine(rwkv.orders["decode"], rwkv.weights, cancel).pieces())
    assert is_gone(process_file)


def test_a_library_that_prints_while_the_graph_is_sent_blocks_nobody(pretend: Pretend) -> None:
    """More than a pipe and a socket hold, at the same time: the graph is read before the library is loaded."""
    pretend(print_at_import=2**20)
    request = {"task": "facts", "modules": ["tensorrt"]}
    with BuilderProcess(request, graph=bytes(4 * 2**20)) as process:
        kinds = [event["kind"] for event in process.events() if isinstance(event, dict)]
        assert (kinds, process.exit_status) == (["library"], 0)
    assert len(process.printed) == builder_process.STDERR_LIMIT_BYTES


def test_a_library_that_ends_its_process_at_import(pretend: Pretend, instead: Instead) -> None:
    instead(last_words="import sys; sys.exit('no driver, no mercy')")
    assert ask_library(("tensorrt",)) == {"error": "no driver, no mercy"}


def test_the_pipe_remembers_its_own_error() -> None:
    """The library goes on whatever a writer returns or raises, so all is taken and the first error kept."""
    reader, writer = os.pipe()
    pipe = PlanPipe(writer)
    assert pipe.write(memoryview(b"abcd")) == 4
    assert (pipe.byte_count, pipe.error) == (4, None)
    os.close(reader)
    assert [pipe.write(b"efgh"), pipe.write(b"ij")] == [4, 2]
    assert pipe.byte_count == 4
    assert pipe.error is not None and "Broken pipe" in pipe.error
    pipe.close()


def test_the_pipe_takes_any_buffer(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    pipe = PlanPipe(os.open(path, os.O_WRONLY | os.O_CREAT))
    piece = memoryview(bytes(3 * 2**20)).cast("B", shape=[3, 2**20])
    assert pipe.write(piece) == 3 * 2**20
    pipe.close()
    assert path.stat().st_size == pipe.byte_count == 3 * 2**20
