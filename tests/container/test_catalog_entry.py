"""A catalog entry follows its schema and says what the bundle says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_bundles import BundleParts, container_bytes, header_of, rewrite_manifest, single_parts

from rowpack.cli import main
from rowpack_loaders import RowpackError, open_bundle
from rowpack_loaders.catalog_entry import catalog_entry
from rowpack_loaders.validation.schema_check import schema_problems


def test_an_entry_follows_its_schema_and_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = BundleParts().write(tmp_path / "tiny.bundle")
    assert main(["inspect", "--catalog-entry", str(tmp_path / "tiny.bundle")]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert list(schema_problems(entry, "catalog_entry", "entry")) == []
    assert entry["file"]["name"] == "tiny.bundle"
    assert (entry["file"]["length"], entry["file"]["file_digest"]) == (written.file_size, written.file_digest)
    assert entry["content_digest"] == written.content_digest
    assert [engine["use"] for engine in entry["engines"]] == ["decode", "prefill"]
    assert entry["memory"] == {"weight_bytes": 288, "state_bytes": 96, "key_value_bytes_per_token": 16}
    assert entry["verified"] is True


def test_engines_with_weights_of_their_own_hold_as_many_copies(tmp_path: Path) -> None:
    for parts, weight_bytes in ((single_parts(), 288), (BundleParts(), 576)):
        parts.manifest["weights"] = None
        parts.without |= {"weights.safetensors"}
        parts.write(tmp_path / "x")
        with open_bundle(tmp_path / "x") as bundle:
            entry = catalog_entry(bundle, url="https://example.org/x", sha256="0" * 64)
        assert list(schema_problems(entry, "catalog_entry", "entry")) == []
        assert entry["memory"] == {"weight_bytes": weight_bytes, "state_bytes": 96, "key_value_bytes_per_token": 16}


def test_a_bundle_without_a_trailer_cannot_be_listed(tmp_path: Path) -> None:
    BundleParts().write(tmp_path / "x")
    rewrite_manifest(tmp_path / "x", lambda manifest: None)
    with open_bundle(tmp_path / "x") as bundle, pytest.raises(RowpackError, match="catalog_needs_trailer"):
        catalog_entry(bundle)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(container_bytes(header_of({})))
    assert main(["inspect", "--catalog-entry", str(tmp_path / "x")]) == 1
