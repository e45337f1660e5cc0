"""Digests of the checkpoint's files are taken beside the build, and no longer than it runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rowpack.checkpoint import InputFile
from rowpack.input_digests import InputDigests


def test_every_file_has_its_digest(tmp_path: Path) -> None:
    contents = {"a.safetensors": b"x" * (5 * 2**20), "config.json": b"{}", "empty": b""}
    files = []
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        files.append(InputFile(name, tmp_path / name, len(content)))
    with InputDigests(files) as digests:
        assert digests.records() == [
            {"file": name, "length": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in contents.items()
        ]


def test_a_build_that_fails_does_not_wait_for_the_rest_of_the_checkpoint() -> None:
    """The file never ends, so neither would a reader that is not stopped."""
    with pytest.raises(KeyError), InputDigests([InputFile("endless", Path("/dev/zero"), 0)]):
        raise KeyError


def test_a_file_that_cannot_be_read_is_told_where_its_digest_is_wanted(tmp_path: Path) -> None:
    with InputDigests([InputFile("gone", tmp_path / "gone", 1)]) as digests, pytest.raises(FileNotFoundError):
        digests.records()
