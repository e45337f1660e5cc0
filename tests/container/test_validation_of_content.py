"""Every rule about file, manifest and the content of sections, with the input that breaks it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rule_breaches import Breach, Breaches, assert_breach_is_told, edited, header_place, replace_trailer
from synthetic_bundles import BundleParts, container_bytes, header_of, pack_golden, rewrite_manifest, single_parts
from tiny_engines import weights_section

from rowpack.bundle.provenance import slsa_provenance
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.validation.runner import LAYERS

BREACHES = Breaches()


# -- file and container ------------------------------------------------------------------------------------------


@BREACHES.written("container_opens", "container_magic_unknown")
def _(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(60))


@BREACHES.written(
    "header_is_of_written_size", "header_longer_than_written", "bundle_manifest_missing", "trailer_missing"
)
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({}), pad_to=16 * 2**20 + 4096))


@BREACHES.written("header_is_padded_with_spaces", "header_padding_invalid", "trailer_digest_mismatch")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(4095, 4096), b"\n"))


@BREACHES.written(
    "places_are_aligned", "section_not_aligned", "bundle_manifest_missing", "trailer_missing", label="payload"
)
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({})))


@BREACHES.written(
    "places_are_aligned", "section_not_aligned", "bundle_manifest_missing", "trailer_missing", label="section"
)
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({"a": {"offset": 8, "length": 1}}), bytes(9), pad_to=4096))


@BREACHES.written("names_are_portable", "section_name_not_portable", "bundle_manifest_missing", "trailer_missing")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({"README": {"offset": 0, "length": 1}}), b"x", pad_to=4096))


@BREACHES.written("sections_are_in_order", "sections_out_of_order", "trailer_digest_mismatch", label="in the header")
def _(path: Path) -> None:
    def swap(data: bytearray) -> None:
        header, length = header_place(data)
        header["sections"] = dict(reversed(header["sections"].items()))
        data[16 : 16 + length] = json.dumps(header, separators=(",", ":")).encode().ljust(length, b" ")

    edited(path, swap)


@BREACHES.written(
    "sections_are_in_order", "sections_out_of_order", "bundle_manifest_missing", "trailer_missing", label="in the file"
)
def _(path: Path) -> None:
    sections = {"engine.onnx": {"offset": 4096, "length": 1}, "weights.safetensors": {"offset": 0, "length": 1}}
    path.write_bytes(container_bytes(header_of(sections), bytes(4097), pad_to=4096))


@BREACHES.written(
    "manifest_is_within_first_mebibyte",
    "manifest_beyond_first_mebibyte",
    "json_malformed",
    "trailer_missing",
)
def _(path: Path) -> None:
    header = header_of({"manifest.json": {"offset": 2**20, "length": 4}})
    path.write_bytes(container_bytes(header, bytes(2**20 + 4), pad_to=4096))


@BREACHES.written("gaps_are_zero", "gap_not_zero")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(20000, 20001), b"\1"))


@BREACHES.written("gaps_are_zero", "gap_too_large", "bundle_manifest_missing", "trailer_missing", label="too large")
def _(path: Path) -> None:
    with path.open("wb") as file:
        file.write(container_bytes(header_of({"a": {"offset": 2**30, "length": 1}}), pad_to=4096))
        file.truncate(4096 + 2**30 + 1)


@BREACHES.written("end_is_accounted_for", "trailing_bytes_undeclared", "trailer_missing")
def _(path: Path) -> None:
    edited(path, lambda data: data.append(0))


# -- manifest ----------------------------------------------------------------------------------------------------


@BREACHES.written("manifest_parses", "json_malformed", "trailer_digest_mismatch")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(4096, 4097), b"["))


@BREACHES.written("manifest_parses", "bundle_manifest_missing", "trailer_missing", label="no manifest")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({}), pad_to=4096))


@BREACHES.bent("manifest_version_is_known", "manifest_schema_unsupported")
def _(parts: BundleParts) -> None:
    parts.manifest["schema_version"] = "2.0"


@BREACHES.bent("manifest_version_is_known", "manifest_feature_unsupported", label="feature")
def _(parts: BundleParts) -> None:
    parts.manifest["required_features"] = ["telepathy"]


@BREACHES.written("manifest_is_canonical", "manifest_not_canonical", "trailer_digest_mismatch")
def _(path: Path) -> None:
    def add_a_space(data: bytearray) -> None:
        header, length = header_place(data)
        end = 4096 + header["sections"]["manifest.json"]["length"]
        data[end - 1 : end + 1] = b" }"
        header["sections"]["manifest.json"]["length"] += 1
        data[16 : 16 + length] = json.dumps(header, separators=(",", ":")).encode().ljust(length, b" ")

    edited(path, add_a_space)


@BREACHES.written(
    "manifest_integers_are_exact", "manifest_integer_not_exact", "content_digest_mismatch", "trailer_missing"
)
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["model"]["hyper_parameters"].update(seed=2**53 + 1))


@BREACHES.bent("manifest_follows_schema", "schema_key_missing", label="missing key")
def _(parts: BundleParts) -> None:
    del parts.manifest["producer"]["version"]


@BREACHES.bent("manifest_follows_schema", "schema_key_unknown", label="unknown key")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["note"] = 1


@BREACHES.bent("manifest_follows_schema", "schema_value_invalid", label="float for an integer")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["prefill_rows"] = 16.0


@BREACHES.bent("manifest_follows_schema", "schema_value_invalid", label="line feed behind an identifier")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["lowering"] = "plain\n"


@BREACHES.bent("manifest_follows_schema", "schema_key_missing", label="inside an optional object")
def _(parts: BundleParts) -> None:
    del parts.manifest["tokens"]["pad"]["sources"]


@BREACHES.written("content_digest_matches", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["model"].update(id="tine"))


# -- content of sections -----------------------------------------------------------------------------------------


@BREACHES.bent("runtime_json_follows_schema", "schema_key_unknown", label="a key more")
def _(parts: BundleParts) -> None:
    parts.runtime_json["rope_theta"] = 1e7


@BREACHES.bent("runtime_json_follows_schema", "schema_key_missing", label="a key less")
def _(parts: BundleParts) -> None:
    del parts.runtime_json["conv_dim"]


@BREACHES.bent("runtime_json_matches_manifest", "runtime_json_mismatch")
def _(parts: BundleParts) -> None:
    parts.runtime_json["max_cache_length"] = 31


@BREACHES.bent("runtime_json_names_engines_that_are_there", "runtime_json_layout_untrue", parts=single_parts)
def _(parts: BundleParts) -> None:
    parts.runtime_json["decoder_engine_layout"] = "split"
    parts.manifest["runtime_json"]["decoder_engine_layout"] = "split"


@BREACHES.bent("runtime_json_matches_states", "runtime_json_state_mismatch", label="size")
def _(parts: BundleParts) -> None:
    parts.runtime_json["conv_dim"] = 8


@BREACHES.bent("runtime_json_matches_states", "runtime_json_state_mismatch", label="layers")
def _(parts: BundleParts) -> None:
    parts.runtime_json["layer_types"] = ["attention", "deltanet"]


@BREACHES.bent("weights_match_manifest", "weights_summary_mismatch", label="count")
def _(parts: BundleParts) -> None:
    parts.manifest["weights"]["tensor_count"] = 3


@BREACHES.bent("weight_section_has_its_name", "weights_section_unexpected", "weight_reference_outside")
def _(parts: BundleParts) -> None:
    parts.without = {"weights.safetensors"}
    parts.sections["tensors.safetensors"] = weights_section()
    parts.manifest["weights"]["section"] = "tensors.safetensors"


@BREACHES.bent("weights_match_manifest", "safetensors_truncated", label="truncated")
def _(parts: BundleParts) -> None:
    parts.sections["weights.safetensors"] = weights_section()[:-1]


@BREACHES.written("section_digests_match", "section_digest_mismatch", "trailer_digest_mismatch")
def _(path: Path) -> None:
    def flip_a_bit(data: bytearray) -> None:
        place = header_place(data)[0]["sections"]["tokenizer.json"]
        data[4096 + place["offset"]] ^= 1

    edited(path, flip_a_bit)


@BREACHES.written("trailer_is_there", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: None)


@BREACHES.written("trailer_is_canonical", "trailer_not_canonical")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: json.dumps(value).encode()))


@BREACHES.written("trailer_version_is_known", "trailer_version_unsupported")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"trailer_version": 2})))


@BREACHES.written("trailer_digests_match", "trailer_digest_mismatch", label="provenance")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"provenance": {}})))


@BREACHES.written("trailer_digests_match", "trailer_digest_mismatch", label="file digest")
def _(path: Path) -> None:
    digest = "sha256:" + "0" * 64
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"file_digest": digest})))


@BREACHES.written("trailer_follows_schema", "schema_value_invalid", "trailer_digest_mismatch", label="provenance")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"provenance": 1})))


@BREACHES.written("trailer_follows_schema", "schema_key_unknown", label="a key more")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"note": "x"})))


@BREACHES.bent("provenance_follows_its_schema", "schema_key_missing", "schema_value_invalid")
def _(parts: BundleParts) -> None:
    broken: Any = slsa_provenance({}, [{"file": "config.json", "length": -1, "sha256": "0" * 64}], {})
    del broken["predicate"]["runDetails"]["builder"]["id"]
    parts.provenance = broken


@BREACHES.bent("golden_vectors_follow_schema", "schema_value_invalid", label="version")
def _(parts: BundleParts) -> None:
    parts.golden["version"] = 2


@BREACHES.bent("golden_vectors_follow_schema", "golden_invalid", label="not zstd")
def _(parts: BundleParts) -> None:
    parts.sections["golden.msgpack.zst"] = b"not a frame"


@BREACHES.bent("golden_vectors_follow_schema", "golden_too_large", label="bomb")
def _(parts: BundleParts) -> None:
    parts.sections["golden.msgpack.zst"] = pack_golden("a" * (2**24 + 1))


@BREACHES.bent("golden_vectors_match_manifest", "golden_manifest_mismatch")
def _(parts: BundleParts) -> None:
    parts.golden["cases"] *= 2


@BREACHES.bent("golden_tokens_fit_model", "token_id_beyond_vocabulary", label="vocabulary")
def _(parts: BundleParts) -> None:
    parts.golden["cases"][0]["greedy_ids"] = [16]


@BREACHES.bent("golden_tokens_fit_model", "golden_case_too_long", label="length")
def _(parts: BundleParts) -> None:
    parts.golden["cases"][0]["prompt_ids"] = [1] * 31


@pytest.mark.parametrize("case", BREACHES, ids=str)
def test_a_broken_rule_is_reported_and_nothing_else(case: Breach, tmp_path: Path) -> None:
    assert_breach_is_told(case, tmp_path / "broken.bundle")


def test_every_rule_has_an_input_that_breaks_it() -> None:
    names = {"file", "container", "padding", "manifest", "runtime_json", "weights", "digests", "trailer", "self_test"}
    rules = {rule.__name__ for layer in LAYERS if layer.name in names for rule in layer.rules}
    assert rules == {case.rule for case in BREACHES}
