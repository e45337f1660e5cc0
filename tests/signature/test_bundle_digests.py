"""Digests are computed from the bytes, and a file that is not its digests' is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from rowpack.cli import main
from rowpack_loaders import RowpackError, bundle_digests, open_bundle
from rowpack_loaders.bundle_digests import digest_bundle


@pytest.mark.parametrize("piece_bytes", [7, 4096, 2**22])
def test_every_digest_is_that_of_the_bytes(bundle: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_digests, "PIECE_BYTES", piece_bytes)
    told: list[tuple[int, int]] = []
    digests = digest_bundle(bundle, progress=lambda done, total: told.append((done, total)))
    data = bundle.read_bytes()
    assert digests.sha256 == hashlib.sha256(data).hexdigest()
    assert digests.file_bytes == len(data)
    assert told[-1] == (len(data), len(data))
    with open_bundle(bundle) as opened:
        trailer = opened.trailer()
        assert trailer is not None
        assert digests.file_digest == trailer["file_digest"]
        assert digests.content_digest == opened.manifest["content_digest"]
        assert digests.section_sha256 == {
            name: hashlib.sha256(data[place.offset_bytes : place.end_bytes]).hexdigest()
            for name, place in opened.sections.items()
        }


def test_a_changed_section_is_named(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        place = opened.sections["weights.safetensors"]
    data = bytearray(bundle.read_bytes())
    data[place.end_bytes - 1] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(RowpackError) as caught:
        digest_bundle(bundle)
    assert caught.value.code == "bundle_digests_mismatch"
    assert [problem.where for problem in caught.value.problems] == [
        f"{bundle}: trailer#/file_digest",
        f"{bundle}: weights.safetensors",
    ]


def test_the_command_prints_what_sha256sum_prints(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(bundle), "--sections"]) == 0
    text = capsys.readouterr().out
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() in text
    assert "weights.safetensors" in text
    assert main(["digest", str(bundle), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == digest_bundle(bundle).as_json()


def test_the_command_refuses_what_is_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(tmp_path / "nothing"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "container_not_found"
