"""What a mapped section asks the system for: large pages, where they are to be had."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from onnx import helper
from toy_models import HYBRID, write_toy_bundle

from rowpack_loaders import load
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.runtimes import ort
from rowpack_loaders.runtimes.ort_state_edges import EngineEdges
from rowpack_loaders.safetensors_header import build_header

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system's headers know no large pages")


class Asked(mmap.mmap):
    """A mapping that remembers what was advised, and refuses it where ``refusal`` is set."""

    refusal: int | None = None
    advice: list[tuple[int, ...]]

    def madvise(self, option: int, *span: int) -> None:
        """Remember the advice and what it is for, () for the whole mapping."""
        self.advice.append((option, *span))
        if self.refusal is not None:
            raise OSError(self.refusal, "refused")


def section_of(folder: Path) -> tuple[MappedSection, Asked]:
    """Return a section in the middle of a mapped file."""
    path = folder / "x.bundle"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file:
        mapping = Asked(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapping.advice = []
        return MappedSection.of(path, file.fileno(), 4096, memoryview(mapping)[4096:]), mapping


def test_large_pages_are_asked_for_the_mapping(tmp_path: Path) -> None:
    section, mapping = section_of(tmp_path)
    section.ask_for_large_pages()
    assert mapping.advice == [(mmap.MADV_HUGEPAGE,)]


def test_tables_are_read_by_the_row(tmp_path: Path) -> None:
    """Advice for a table covers its whole pages, and none of a neighbour's."""
    header = build_header([("first", "U8", (5000,)), ("table", "U8", (20000,)), ("last", "U8", (5000,))])
    path = tmp_path / "x.bundle"
    path.write_bytes(bytes(4096) + header + bytes(30000))
    with path.open("rb") as file:
        mapping = Asked(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapping.advice = []
        section = MappedSection.of(path, file.fileno(), 4096, memoryview(mapping)[4096:])
    section.ask_for_large_pages(["table"])
    whole, (option, first, length) = mapping.advice
    assert whole == (mmap.MADV_HUGEPAGE,)
    assert option == mmap.MADV_NOHUGEPAGE
    start = 4096 + len(header) + 5000
    assert start <= first < start + mmap.PAGESIZE
    assert start + 20000 - mmap.PAGESIZE < first + length <= start + 20000
    assert first % mmap.PAGESIZE == length % mmap.PAGESIZE == 0


def test_they_are_asked_for_before_a_session_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy model looks rows of its embedding up; everything else is read whole in every step."""
    bundle = write_toy_bundle(tmp_path / "toy.bundle", HYBRID)
    monkeypatch.setattr(ort, "SHARED_WEIGHT_BYTES", 1)
    calls: list[object] = []
    create = ort.OrtRuntime._create_session

    def remember(runtime: ort.OrtRuntime, *arguments: Any) -> Any:
        calls.append("session")
        return create(runtime, *arguments)

    monkeypatch.setattr(ort.OrtRuntime, "_create_session", remember)
    monkeypatch.setattr(MappedSection, "ask_for_large_pages", lambda section, tables: calls.append(set(tables)))
    load(bundle, threads=1)
    assert calls == [{"embedding.weight"}, "session", "session"]


def test_a_table_that_is_multiplied_too_is_read_whole() -> None:
    nodes = [
        helper.make_node("Gather", ["tied", "ids"], ["rows"]),
        helper.make_node("Gather", ["table", "ids"], ["other"]),
        helper.make_node("MatMul", ["tied", "other"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    edges = EngineEdges(helper.make_model(graph).SerializeToString(), [], where="engine.onnx")
    assert [edges.looks_up(name) for name in ("tied", "table", "other")] == [False, True, False]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_kernel_without_them_is_no_error(tmp_path: Path, number: int) -> None:
    section, mapping = section_of(tmp_path)
    mapping.refusal = number
    section.ask_for_large_pages()
    assert mapping.advice == [(mmap.MADV_HUGEPAGE,)]


def test_this_kernel_takes_the_advice_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    path.write_bytes(b"x" * 8192)
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        section = MappedSection.of(path, file.fileno(), 0, view)
    section.ask_for_large_pages()
    assert bytes(section.view) == b"x" * 8192


@pytest.mark.parametrize("data", [b"x" * 4096, bytearray(4096)])
def test_bytes_that_are_not_mapped_are_left_alone(tmp_path: Path, data: Any) -> None:
    section = MappedSection(tmp_path / "x.bundle", 0, memoryview(data), (0, 0))
    section.ask_for_large_pages()
    section.give_back_pages()
