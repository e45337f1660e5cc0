"""What a mapped section asks the system for: large pages, where they are to be had."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from toy_models import HYBRID, write_toy_bundle

from rowpack_loaders import load, open_bundle
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.runtimes.ort import OrtRuntime

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system's headers know no large pages")


class Asked(mmap.mmap):
    """A mapping that remembers what was advised, and refuses it where ``refusal`` is set."""

    refusal: int | None = None
    advice: list[int]

    def madvise(self, option: int, *span: int) -> None:
        """Remember the option of advice on the whole mapping."""
        assert span == ()
        self.advice.append(option)
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
    assert mapping.advice == [mmap.MADV_HUGEPAGE]


def test_they_are_asked_for_before_a_runtime_has_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_toy_bundle(tmp_path / "toy.bundle", HYBRID)
    with open_bundle(bundle) as opened:
        place = opened.container.sections["weights.safetensors"]
    calls: list[object] = []
    made = OrtRuntime.__init__

    def remember(runtime: OrtRuntime, *arguments: Any, **options: Any) -> None:
        calls.append("runtime")
        made(runtime, *arguments, **options)

    monkeypatch.setattr(OrtRuntime, "__init__", remember)
    monkeypatch.setattr(MappedSection, "ask_for_large_pages", lambda section: calls.append(section.offset_bytes))
    load(bundle, threads=1)
    assert calls == [place.offset_bytes, "runtime"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_kernel_without_them_is_no_error(tmp_path: Path, number: int) -> None:
    section, mapping = section_of(tmp_path)
    mapping.refusal = number
    section.ask_for_large_pages()
    assert mapping.advice == [mmap.MADV_HUGEPAGE]


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
