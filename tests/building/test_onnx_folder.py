"""A folder of files appears with all of them, or is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rowpack.onnx_folder import write_files
from rowpack_loaders import RowpackError


def failing() -> Iterator[bytes]:
    """Yield a piece, then fail as a full disk does."""
    yield b"first"
    raise RowpackError("disk_full", "There is not enough space for the output")


def test_every_file_is_written(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "new" / "folder", {"a": [b"1", b"2"], "b": [b""]})
    assert [path.read_bytes() for path in paths] == [b"12", b""]
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["a", "b"]


def test_a_folder_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RowpackError):
        write_files(tmp_path / "folder", {"a": [b"1"], "b": failing()})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"older")
    with pytest.raises(RowpackError):
        write_files(tmp_path, {"a": [b"newer"], "b": failing()})
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"older")]
