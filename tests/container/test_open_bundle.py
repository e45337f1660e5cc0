"""What a reader takes from a bundle, and what it refuses before any engine is touched."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_bundles import BundleParts, container_bytes, header_of, rewrite_manifest, single_parts
from tiny_engines import engine_section

from rowpack_loaders import open_bundle
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import SpecialToken


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "x.bundle"
    BundleParts().write(target)
    return target


def test_a_bundle_shows_its_manifest_as_typed_records(path: Path) -> None:
    with open_bundle(path) as bundle:
        assert (bundle.family, bundle.backend, bundle.decoder_engine_layout) == ("qwen3_5", "ort", "split")
        assert list(bundle.engines) == ["decode", "prefill"]
        prefill = bundle.engines["prefill"]
        assert (prefill.section, prefill.rows.opt, prefill.rows.max) == ("prefill.onnx", 8, 16)
        assert prefill.input("attention_mask").shape == ("rows", "cache_rows+rows")
        assert prefill.output("logits").role == "logits"
        conv, key, value = bundle.states
        assert (conv.role, conv.shape, conv.update, conv.rewindable) == ("conv", (6, 4), "replace", False)
        assert (key.input, value.output, value.initial_value) == ("cache_k_0", "present_v_0", 0.0)
        assert (bundle.limits.max_cache_length, bundle.limits.prefill_rows) == (32, 16)
        assert bundle.limits.max_position_embeddings == 64
        assert bundle.tokens.eos_ids == (2,)
        assert (bundle.tokens.bos, bundle.tokens.pad) == (None, SpecialToken(0, ("config.json",)))
        assert bundle.read_section("engine.onnx") == engine_section("decode")
        assert bytes(bundle.section_view("prefill.onnx")) == engine_section("prefill")
        assert bundle.header.task == "text_generation"
        trailer = bundle.trailer()
        assert trailer is not None
        assert trailer["content_digest"] == bundle.manifest["content_digest"]


def test_a_single_bundle_has_one_engine(tmp_path: Path) -> None:
    single_parts().write(tmp_path / "x")
    with open_bundle(tmp_path / "x") as bundle:
        assert bundle.decoder_engine_layout == "single"
        assert list(bundle.engines) == ["decode"]


def code_of(path: Path) -> str:
    """Return the code with which opening fails."""
    with pytest.raises(RowpackError) as caught:
        open_bundle(path)
    return caught.value.code


def test_a_container_without_a_manifest_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(container_bytes(header_of({"engine.plan": {"offset": 0, "length": 1}}), b"x"))
    assert code_of(path) == "bundle_manifest_missing"


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another major": (lambda m: m.update(schema_version="2.0"), "manifest_schema_unsupported"),
    "no version": (lambda m: m.pop("schema_version"), "manifest_malformed"),
    "version 1": (lambda m: m.update(schema_version="1"), "manifest_malformed"),
    "version 1.x": (lambda m: m.update(schema_version="1.x"), "manifest_malformed"),
    "version as a number": (lambda m: m.update(schema_version=1.0), "manifest_malformed"),
    "an unknown feature": (lambda m: m.update(required_features=["sliding"]), "manifest_feature_unsupported"),
    "features missing": (lambda m: m.pop("required_features"), "manifest_malformed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_the_reader_cannot_understand_is_refused(name: str, path: Path) -> None:
    change, code = REFUSED[name]
    rewrite_manifest(path, change)
    assert code_of(path) == code


def test_a_newer_minor_and_unknown_optional_keys_are_read(path: Path) -> None:
    rewrite_manifest(path, lambda m: m.update(schema_version="1.7", flavour="vanilla"))
    with open_bundle(path) as bundle:
        assert bundle.manifest["flavour"] == "vanilla"
        assert bundle.engines["decode"].rows.max == 1


MALFORMED: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "layout": (lambda m: m.update(decoder_engine_layout="double"), "decoder_engine_layout", "/decoder_engine_layout"),
    "engines": (lambda m: m.update(engines=[]), "engines", "/engines"),
    "engine rows": (lambda m: m["engines"]["decode"].update(rows=1), "engines", "/engines/decode/rows"),
    "row count": (lambda m: m["engines"]["decode"]["rows"].update(min=True), "engines", "/engines/decode/rows/min"),
    "shape": (lambda m: m["engines"]["decode"]["inputs"][0].update(shape=[0]), "engines", "/inputs/0/shape/0"),
    "negative shape": (lambda m: m["engines"]["decode"]["inputs"][0].update(shape=[-1]), "engines", "/shape/0"),
    "states": (lambda m: m["states"].append(7), "states", "/states/3"),
    "free state shape": (lambda m: m["states"][0].update(shape=["rows"]), "states", "/states/0/shape/0"),
    "update": (lambda m: m["states"][0].update(update="rotate"), "states", "/states/0/update"),
    "initial value": (lambda m: m["states"][0].update(initial_value="0"), "states", "/states/0/initial_value"),
    "limits": (lambda m: m["limits"].update(max_cache_length=0), "limits", "/limits/max_cache_length"),
    "eos": (lambda m: m["tokens"].update(eos=2), "tokens", "/tokens/eos"),
    "sources": (lambda m: m["tokens"]["eos"][0].update(sources=[1]), "tokens", "/tokens/eos/0/sources/0"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_value_is_told_with_its_place(name: str, path: Path) -> None:
    change, attribute, place = MALFORMED[name]
    rewrite_manifest(path, change)
    with open_bundle(path) as bundle, pytest.raises(RowpackError) as caught:
        getattr(bundle, attribute)
    assert caught.value.code == "manifest_malformed"
    assert str(caught.value.problem.where).endswith(place)


def test_a_damaged_header_or_manifest_does_not_open(path: Path) -> None:
    whole = path.read_bytes()
    (length,) = struct.unpack_from("<Q", whole, 8)
    place = json.loads(whole[16 : 16 + length])["sections"]["manifest.json"]
    for position in (16 + length - 1, 16 + length + place["length"] // 2):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert code_of(path) in {"trailer_digest_mismatch", "json_malformed"}


def test_importing_is_cheap_and_opening_needs_no_third_party_library(path: Path) -> None:
    program = (
        "import sys, rowpack_loaders\n"
        "rowpack_loaders.open_bundle(sys.argv[1]).states\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'jsonschema', 'msgpack', 'zstandard', 'rich', 'rowpack'}\n"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or None)\n"
    )
    search_path = [entry for entry in sys.path if entry]
    subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, env={"PYTHONPATH": ":".join(search_path)}, timeout=60
    )


def test_public_names_are_there_and_others_are_not() -> None:
    import rowpack_loaders

    assert set(rowpack_loaders.__all__) <= set(dir(rowpack_loaders))
    assert rowpack_loaders.Bundle.__name__ == "Bundle"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = rowpack_loaders.nonsense
