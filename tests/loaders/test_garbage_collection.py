"""Collections are paused during a load and go on afterwards, whatever becomes of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_models import HYBRID, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.garbage_collection import paused_collection
from rowpack_loaders.runtimes import ort


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    gc.enable()


def test_a_load_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_toy_bundle(tmp_path / "toy.bundle", HYBRID)
    seen: list[bool] = []
    create = ort.OrtRuntime._create_session

    def remember(runtime: ort.OrtRuntime, *arguments: Any) -> Any:
        seen.append(gc.isenabled())
        return create(runtime, *arguments)

    monkeypatch.setattr(ort.OrtRuntime, "_create_session", remember)
    load(bundle, threads=1)
    assert seen == [False, False]
    assert gc.isenabled()


def test_collections_go_on_after_a_load_that_failed(tmp_path: Path) -> None:
    with pytest.raises(RowpackError):
        load(tmp_path / "missing.bundle")
    assert gc.isenabled()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    with paused_collection():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_one_inside_another_ends_with_the_outer_one() -> None:
    with paused_collection():
        with paused_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
