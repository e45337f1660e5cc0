"""Provenance: SLSA's form, the same for the same build, and no more than what is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic_bundles import BundleParts

from rowpack import BuildRequest, build
from rowpack.bundle.provenance import slsa_provenance
from rowpack_loaders import RowpackError, open_bundle, validate
from rowpack_loaders.validation.schema_check import schema_problems

INPUTS = [{"file": "config.json", "length": 3, "sha256": "1" * 64}]


def provenance() -> Any:
    """Return the provenance of a made-up build."""
    return slsa_provenance({"precision": "fp16", "prefill_rows": 64}, INPUTS, {"rowpack": "0.1.0", "ort": "1.32.0"})


def test_a_predicate_of_slsa_v1_with_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert provenance() == {
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:rowpack:build:1",
                "externalParameters": {"precision": "fp16", "prefill_rows": 64},
                "resolvedDependencies": [
                    {"name": "config.json", "digest": {"sha256": "1" * 64}, "annotations": {"length": 3}}
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:rowpack:builder", "version": {"rowpack": "0.1.0", "ort": "1.32.0"}},
                "metadata": {},
            },
        },
    }
    assert list(schema_problems(provenance(), "provenance", "x")) == []


def test_a_time_is_told_only_where_one_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = provenance()
    assert dated["predicate"]["runDetails"]["metadata"] == {"finishedOn": "2023-11-14T22:13:20Z"}
    assert list(schema_problems(dated, "provenance", "x")) == []
    parts = BundleParts(provenance=dated)
    parts.write(tmp_path / "x.bundle")
    assert validate(tmp_path / "x.bundle").errors == []


@pytest.mark.parametrize("value", ["yesterday", "-1", "1.5", "", "99999999999999", "１７"])
def test_a_time_that_is_none_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(RowpackError) as caught:
        provenance()
    assert caught.value.code == "source_date_epoch_invalid"


def test_a_bad_time_is_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(checkpoint=tmp_path / "nowhere", output=tmp_path / "x.bundle"))
    assert caught.value.code == "source_date_epoch_invalid"


def test_a_build_tells_its_parameters_and_no_path(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    build(BuildRequest(checkpoint=rwkv_checkpoint, output=path, decoder_engine_layout="single", verify=False))
    with open_bundle(path) as bundle:
        trailer, manifest = bundle.trailer(), bundle.manifest
    assert trailer is not None
    told: Any = trailer["provenance"]
    assert list(schema_problems(told, "provenance", "x")) == []
    definition = told["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["decoder_engine_layout"] == "single"
    assert definition["externalParameters"]["verify"] is False
    assert str(tmp_path) not in str(told)
    assert str(rwkv_checkpoint) not in str(told)
    model: Any = manifest["model"]
    assert [entry["digest"]["sha256"] for entry in definition["resolvedDependencies"]] == [
        entry["sha256"] for entry in model["inputs"]
    ]
