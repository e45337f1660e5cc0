"""Bundles whose prefill plan is stored as extents: written, validated, read, and refused when they are not whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "container"))

from extent_vectors import COPY, LITERAL, stored
from synthetic_bundles import BundleParts

from rowpack import BuildRequest
from rowpack.bundle import BundleWriter
from rowpack.engines.options import EngineOptions
from rowpack_loaders import RowpackError, open_bundle, validate
from rowpack_loaders.digests import content_digest
from rowpack_loaders.section_content import ExtentsRecord, check_content_digest, content_pieces, open_content

ENGINE = b"decode plan with its weights"
PREFILL = b"prefill plan" + ENGINE[12:]
STORED = stored([(LITERAL, 12, 0), (COPY, 16, 12)], b"prefill plan")


def write(path: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None, **options: Any) -> Path:
    """Write a bundle with a prefill plan over its decode plan; ``options`` replace stored bytes or record."""
    import hashlib

    parts = BundleParts(backend="trt_rtx", without={"weights.safetensors"})
    parts.manifest["weights"] = None
    for role, section in (("decode", "engine.plan"), ("prefill", "prefill.plan")):
        parts.manifest["engines"][role] |= {"section": section, "backend": "trt_rtx"}
    change(parts.manifest)
    record = ExtentsRecord("engine.plan", len(PREFILL), hashlib.sha256(PREFILL).hexdigest())
    with BundleWriter(path, family="qwen3_5", backend="trt_rtx", manifest_reserve_bytes=16384) as writer:
        writer.add_section("runtime.json", parts.contents()["runtime.json"], media_type="application/json")
        writer.add_section("tokenizer.json", b'{"model":{}}', media_type="application/json")
        writer.add_section("engine.plan", ENGINE, media_type="application/x-tensorrt-plan")
        writer.add_section(
            "prefill.plan",
            options.get("stored", STORED),
            media_type="application/x-tensorrt-plan",
            encoding="extents",
            extents=options.get("record", record),
        )
        golden = parts.contents()["golden.msgpack.zst"]
        writer.add_section("golden.msgpack.zst", golden, media_type="application/msgpack", encoding="zstd")
        writer.finish(parts.manifest, {})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.bundle")


def codes(path: Path) -> set[str]:
    """Return the codes that validation reports, but for what a made-up bundle says of its numbers."""
    return {problem.code for problem in validate(path).errors} - {"layout_decision_number_mismatch"}


def test_the_bundle_is_valid_and_tells_what_it_demands(path: Path) -> None:
    assert codes(path) == set()
    with open_bundle(path) as bundle:
        assert bundle.manifest["required_features"] == ["section_extents"]
        sections: Any = bundle.manifest["sections"]
        assert sections["prefill.plan"]["encoding"] == "extents"
        assert sections["prefill.plan"]["length"] == len(STORED)
        content = open_content(bundle.container, bundle.manifest, "prefill.plan")
        assert b"".join(map(bytes, content_pieces(content, 5))) == PREFILL
        check_content_digest(content, bundle.manifest, "prefill.plan", "x")
        raw = open_content(bundle.container, bundle.manifest, "engine.plan")
        assert b"".join(map(bytes, content_pieces(raw))) == ENGINE
        check_content_digest(raw, bundle.manifest, "engine.plan", "x")


def test_the_content_digest_leaves_plans_out(path: Path) -> None:
    with open_bundle(path) as bundle:
        manifest: Any = bundle.manifest
        before = content_digest(manifest)
        manifest["sections"]["prefill.plan"]["extents"]["sha256"] = "0" * 64
        manifest["sections"]["prefill.plan"]["extents"]["length"] = 1
        assert content_digest(manifest) == before
        manifest["sections"]["prefill.plan"]["encoding"] = "raw"
        assert content_digest(manifest) != before


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"stored": STORED[:-1]}, "extents_malformed"),
        ({"stored": stored([(COPY, 28, 1)])}, "extents_malformed"),
        ({"stored": stored([(COPY, 28, 0)])}, "section_digest_mismatch"),
        ({"record": ExtentsRecord("engine.plan", 27, "0" * 64)}, "extents_malformed"),
        ({"record": ExtentsRecord("engine.plan", 28, "0" * 64)}, "section_digest_mismatch"),
        ({"record": ExtentsRecord("prefill.plan", 28, "0" * 64)}, "extents_base_unsuitable"),
        ({"record": ExtentsRecord("no such section", 28, "0" * 64)}, "extents_base_unsuitable"),
        ({"record": ExtentsRecord("golden.msgpack.zst", 28, "0" * 64)}, "extents_base_unsuitable"),
        ({"record": None}, "section_encoding_unexpected"),
    ],
)
def test_what_does_not_fit_together_is_told(options: dict[str, Any], code: str, tmp_path: Path) -> None:
    assert code in codes(write(tmp_path / "x.bundle", **options))


def test_an_engine_that_old_loaders_read_is_stored_raw(tmp_path: Path) -> None:
    parts = BundleParts()
    parts.declared["engine.onnx"] = {"encoding": "extents"}
    parts.write(tmp_path / "x.bundle")
    assert "section_encoding_unexpected" in codes(tmp_path / "x.bundle")


def test_a_reader_without_the_feature_refuses_the_bundle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rowpack_loaders import manifest

    monkeypatch.setattr(manifest, "KNOWN_FEATURES", frozenset())
    with pytest.raises(RowpackError, match="section_extents"):
        open_bundle(path)


def test_loaders_that_predate_the_manifest_get_a_raw_plan(tmp_path: Path) -> None:
    def encoding(runtime_json: str, asked: Any = None) -> str:
        options = EngineOptions(plan_encoding=asked)
        request = BuildRequest(tmp_path, tmp_path, runtime_json_layout=runtime_json, engine_options=options)
        return request.plan_encoding

    assert encoding("single") == "shared"
    assert encoding("single", "raw") == "raw"
    assert encoding("split") == "raw"
    with pytest.raises(RowpackError) as caught:
        encoding("split", "shared")
    assert caught.value.code == "plan_encoding_conflict"
