"""Every rule of the validator, with the input that breaks it and nothing else."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from synthetic_bundles import (
    BundleParts,
    container_bytes,
    header_of,
    pack_golden,
    rewrite_manifest,
    single_parts,
    tensor,
    weights_section,
)

from rowpack_loaders.container import TRAILER_MAGIC
from rowpack_loaders.digests import canonical_json
from rowpack_loaders.validation import validate
from rowpack_loaders.validation.runner import LAYERS

TRAILER_FRAME = 16


@dataclass(frozen=True)
class Breach:
    """A rule's name, what breaks it, and every code that is then reported."""

    rule: str
    label: str
    codes: frozenset[str]
    write: Callable[[Path], None]


BREACHES: list[Breach] = []


def breach(rule: str, *codes: str, label: str = "") -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function that writes a broken bundle to the path it is given."""

    def register(write: Callable[[Path], None]) -> Callable[[Path], None]:
        BREACHES.append(Breach(rule, label, frozenset(codes), write))
        return write

    return register


def bent(
    rule: str, *codes: str, label: str = "", parts: Callable[[], BundleParts] = BundleParts
) -> Callable[[Callable[[BundleParts], None]], None]:
    """Register a function that bends the parts of a valid bundle before it is written."""

    def register(bend: Callable[[BundleParts], None]) -> None:
        def write(path: Path) -> None:
            broken = parts()
            bend(broken)
            broken.write(path)

        BREACHES.append(Breach(rule, label, frozenset(codes), write))

    return register


def edited(path: Path, change: Callable[[bytearray], None]) -> None:
    """Write a valid bundle, then change its bytes."""
    BundleParts().write(path)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def header_place(data: bytearray) -> tuple[dict[str, Any], int]:
    """Return the parsed header of a written bundle and its length."""
    (length,) = struct.unpack_from("<Q", data, 8)
    return json.loads(data[16 : 16 + length]), length


def replace_trailer(data: bytearray, text: Callable[[dict[str, Any]], bytes]) -> None:
    """Put another text into the trailer of a written bundle, framed rightly."""
    (length,) = struct.unpack_from("<Q", data, len(data) - TRAILER_FRAME)
    start = len(data) - TRAILER_FRAME - length
    new = text(json.loads(data[start : start + length]))
    data[start:] = new + struct.pack("<Q", len(new)) + TRAILER_MAGIC


# -- file and container ------------------------------------------------------------------------------------------


@breach("container_opens", "container_magic_unknown")
def _(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(60))


@breach("header_is_of_written_size", "header_longer_than_written", "bundle_manifest_missing", "trailer_missing")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({}), pad_to=16 * 2**20 + 4096))


@breach("header_is_padded_with_spaces", "header_padding_invalid", "trailer_digest_mismatch")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(4095, 4096), b"\n"))


@breach("places_are_aligned", "section_not_aligned", "bundle_manifest_missing", "trailer_missing", label="payload")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({})))


@breach("places_are_aligned", "section_not_aligned", "bundle_manifest_missing", "trailer_missing", label="section")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({"a": {"offset": 8, "length": 1}}), bytes(9), pad_to=4096))


@breach("names_are_portable", "section_name_not_portable", "bundle_manifest_missing", "trailer_missing")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({"README": {"offset": 0, "length": 1}}), b"x", pad_to=4096))


@breach("sections_are_in_order", "sections_out_of_order", "trailer_digest_mismatch", label="in the header")
def _(path: Path) -> None:
    def swap(data: bytearray) -> None:
        header, length = header_place(data)
        header["sections"] = dict(reversed(header["sections"].items()))
        data[16 : 16 + length] = json.dumps(header, separators=(",", ":")).encode().ljust(length, b" ")

    edited(path, swap)


@breach(
    "sections_are_in_order", "sections_out_of_order", "bundle_manifest_missing", "trailer_missing", label="in the file"
)
def _(path: Path) -> None:
    sections = {"engine.onnx": {"offset": 4096, "length": 1}, "weights.safetensors": {"offset": 0, "length": 1}}
    path.write_bytes(container_bytes(header_of(sections), bytes(4097), pad_to=4096))


@breach(
    "manifest_is_within_first_mebibyte",
    "manifest_beyond_first_mebibyte",
    "json_malformed",
    "trailer_missing",
)
def _(path: Path) -> None:
    header = header_of({"manifest.json": {"offset": 2**20, "length": 4}})
    path.write_bytes(container_bytes(header, bytes(2**20 + 4), pad_to=4096))


@breach("gaps_are_zero", "gap_not_zero")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(20000, 20001), b"\1"))


@breach("gaps_are_zero", "gap_too_large", "bundle_manifest_missing", "trailer_missing", label="too large")
def _(path: Path) -> None:
    with path.open("wb") as file:
        file.write(container_bytes(header_of({"a": {"offset": 2**30, "length": 1}}), pad_to=4096))
        file.truncate(4096 + 2**30 + 1)


@breach("end_is_accounted_for", "trailing_bytes_undeclared", "trailer_missing")
def _(path: Path) -> None:
    edited(path, lambda data: data.append(0))


# -- manifest ----------------------------------------------------------------------------------------------------


@breach("manifest_parses", "json_malformed", "trailer_digest_mismatch")
def _(path: Path) -> None:
    edited(path, lambda data: data.__setitem__(slice(4096, 4097), b"["))


@breach("manifest_parses", "bundle_manifest_missing", "trailer_missing", label="no manifest")
def _(path: Path) -> None:
    path.write_bytes(container_bytes(header_of({}), pad_to=4096))


@bent("manifest_version_is_known", "manifest_schema_unsupported")
def _(parts: BundleParts) -> None:
    parts.manifest["schema_version"] = "2.0"


@bent("manifest_version_is_known", "manifest_feature_unsupported", label="feature")
def _(parts: BundleParts) -> None:
    parts.manifest["required_features"] = ["telepathy"]


@breach("manifest_is_canonical", "manifest_not_canonical", "trailer_digest_mismatch")
def _(path: Path) -> None:
    def add_a_space(data: bytearray) -> None:
        header, length = header_place(data)
        end = 4096 + header["sections"]["manifest.json"]["length"]
        data[end - 1 : end + 1] = b" }"
        header["sections"]["manifest.json"]["length"] += 1
        data[16 : 16 + length] = json.dumps(header, separators=(",", ":")).encode().ljust(length, b" ")

    edited(path, add_a_space)


@breach("manifest_integers_are_exact", "manifest_integer_not_exact", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["model"]["hyper_parameters"].update(seed=2**53 + 1))


@bent("manifest_follows_schema", "schema_key_missing", label="missing key")
def _(parts: BundleParts) -> None:
    del parts.manifest["producer"]["version"]


@bent("manifest_follows_schema", "schema_key_unknown", label="unknown key")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["note"] = 1


@bent("manifest_follows_schema", "schema_value_invalid", label="float for an integer")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["prefill_rows"] = 16.0


@bent("manifest_follows_schema", "schema_value_invalid", label="line feed behind an identifier")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["lowering"] = "plain\n"


@bent("manifest_follows_schema", "schema_key_missing", label="inside an optional object")
def _(parts: BundleParts) -> None:
    del parts.manifest["tokens"]["pad"]["sources"]


@breach("content_digest_matches", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["model"].update(id="tine"))


# -- references --------------------------------------------------------------------------------------------------


@bent("header_matches_manifest", "header_manifest_mismatch", "runtime_json_family_unknown", label="family")
def _(parts: BundleParts) -> None:
    parts.family = "mamba"


@bent("header_matches_manifest", "header_manifest_mismatch", label="backend")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["backend"] = "trt"


@breach("every_section_is_declared", "section_undeclared", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["sections"].pop("tokenizer.json"))


@breach("every_declared_section_is_there", "section_declared_missing", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts(manifest=BundleParts().manifest).write(path)
    rewrite_manifest(
        path, lambda value: value["sections"].update({"extra": {**value["sections"]["engine.onnx"], "required": False}})
    )


@breach(
    "every_declared_section_is_there",
    "section_length_mismatch",
    "content_digest_mismatch",
    "trailer_missing",
    label="length",
)
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["sections"]["engine.onnx"].update(length=13))


@bent("references_are_declared", "section_reference_missing")
def _(parts: BundleParts) -> None:
    parts.manifest["tokenizer"]["chat_template_section"] = "chat_template.jinja"


@bent("required_sections_are_referred_to", "section_unreferenced")
def _(parts: BundleParts) -> None:
    parts.sections["extra.bin"] = b"x"


@bent("each_use_has_its_own_section", "section_used_twice", "engine_section_unexpected")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["section"] = "engine.onnx"
    parts.without = {"prefill.onnx"}


@bent("encodings_fit_uses", "section_encoding_unexpected")
def _(parts: BundleParts) -> None:
    parts.declared["engine.onnx"] = {"encoding": "zstd"}


@bent("encodings_fit_uses", "section_encoding_unexpected", label="golden vectors raw")
def _(parts: BundleParts) -> None:
    parts.declared["golden.msgpack.zst"] = {"encoding": "raw"}


# -- engines -----------------------------------------------------------------------------------------------------


@bent("layout_matches_engines", "layout_engines_mismatch", "layout_decision_mismatch", label="single with two engines")
def _(parts: BundleParts) -> None:
    parts.manifest["decoder_engine_layout"] = "single"


@bent("layout_matches_engines", "layout_engines_mismatch", parts=single_parts, label="split with one engine")
def _(parts: BundleParts) -> None:
    parts.manifest["decoder_engine_layout"] = "split"
    parts.manifest["layout_decision"]["layout"] = "split"


@bent(
    "layout_matches_engines",
    "engine_section_unused",
    "section_unreferenced",
    parts=single_parts,
    label="stray prefill section",
)
def _(parts: BundleParts) -> None:
    parts.without = set()


@bent("engine_sections_have_their_names", "engine_section_unexpected")
def _(parts: BundleParts) -> None:
    parts.without = {"prefill.onnx"}
    parts.sections["chunks.onnx"] = b"prefill graph"
    parts.manifest["engines"]["prefill"]["section"] = "chunks.onnx"


@bent("decision_matches_layout", "layout_decision_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["layout_decision"]["layout"] = "single"


@bent("row_ranges_fit", "engine_rows_invalid", label="decode of two rows")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["rows"]["max"] = 2


@bent("row_ranges_fit", "engine_rows_invalid", label="prefill beyond the limit")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["rows"]["max"] = 32


@bent("tensor_names_are_unique", "engine_tensor_duplicate")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["inputs"].append(tensor("cache_k_0", "float32", ["cache_rows", 2], "state"))


@bent("roles_are_complete", "engine_role_count")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["outputs"].pop(0)


@bent("roles_are_complete", "engine_dtype_invalid", label="dtype")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][0]["dtype"] = "int64"


@bent("row_inputs_have_row_shapes", "engine_shape_invalid")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][0]["shape"] = [1]


@bent("logits_are_one_vocabulary_row", "engine_shape_invalid")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["outputs"][0]["shape"] = ["rows", 16]


# -- states ------------------------------------------------------------------------------------------------------


@bent("state_tensors_are_unique", "state_duplicate")
def _(parts: BundleParts) -> None:
    parts.manifest["states"].append(dict(parts.manifest["states"][0]))


@bent("states_are_engine_tensors", "state_tensor_missing")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"].pop()


@bent("engine_states_are_listed", "state_unlisted")
def _(parts: BundleParts) -> None:
    parts.manifest["states"].pop()


@bent("state_dtypes_agree", "state_dtype_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][3]["dtype"] = "float16"


@bent("state_shapes_agree", "state_shape_mismatch", label="replaced")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["outputs"][1]["shape"] = [6, 3]


@bent("state_shapes_agree", "state_shape_mismatch", label="decode gives more than one row")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["outputs"][2]["shape"] = ["rows", 2]


@bent("state_shapes_agree", "state_shape_mismatch", label="cache width")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["inputs"][4]["shape"] = ["cache_rows", 3]


@bent("appended_states_hold_the_cache", "state_rows_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["states"][1]["shape"] = [31, 2]


@bent("updates_fit_roles", "state_update_invalid")
def _(parts: BundleParts) -> None:
    parts.manifest["states"][0]["rewindable"] = True


# -- limits ------------------------------------------------------------------------------------------------------


@bent("token_ids_are_in_vocabulary", "token_id_beyond_vocabulary")
def _(parts: BundleParts) -> None:
    parts.manifest["tokens"]["eos"].append({"id": 16, "sources": ["tokenizer_config.json"]})


@bent("eos_ids_are_listed_once", "token_id_duplicate")
def _(parts: BundleParts) -> None:
    parts.manifest["tokens"]["eos"] *= 2


@bent("vocabulary_sizes_agree", "vocabulary_size_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["model"]["hyper_parameters"]["vocab_size"] = 17


@bent("cache_fits_positions", "cache_longer_than_positions")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["max_position_embeddings"] = 31


@bent("tokenizer_is_told_truly", "tokenizer_missing_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["tokenizer"]["missing"] = True


# -- content of sections -----------------------------------------------------------------------------------------


@bent("runtime_json_follows_schema", "schema_key_unknown", label="a key more")
def _(parts: BundleParts) -> None:
    parts.runtime_json["rope_theta"] = 1e7


@bent("runtime_json_follows_schema", "schema_key_missing", label="a key less")
def _(parts: BundleParts) -> None:
    del parts.runtime_json["conv_dim"]


@bent("runtime_json_matches_manifest", "runtime_json_mismatch")
def _(parts: BundleParts) -> None:
    parts.runtime_json["max_cache_length"] = 31


@bent("weights_match_manifest", "weights_summary_mismatch", label="count")
def _(parts: BundleParts) -> None:
    parts.manifest["weights"]["tensor_count"] = 3


@bent("weights_match_manifest", "safetensors_truncated", label="truncated")
def _(parts: BundleParts) -> None:
    parts.sections["weights.safetensors"] = weights_section()[:-1]


@breach("section_digests_match", "section_digest_mismatch", "trailer_digest_mismatch")
def _(path: Path) -> None:
    def flip_a_bit(data: bytearray) -> None:
        place = header_place(data)[0]["sections"]["engine.onnx"]
        data[4096 + place["offset"]] ^= 1

    edited(path, flip_a_bit)


@breach("trailer_is_there", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: None)


@breach("trailer_is_canonical", "trailer_not_canonical")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: json.dumps(value).encode()))


@breach("trailer_version_is_known", "trailer_version_unsupported")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"trailer_version": 2})))


@breach("trailer_digests_match", "trailer_digest_mismatch", label="provenance")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"provenance": {}})))


@breach("trailer_digests_match", "trailer_digest_mismatch", label="file digest")
def _(path: Path) -> None:
    digest = "sha256:" + "0" * 64
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"file_digest": digest})))


@breach("provenance_is_an_object", "trailer_provenance_invalid", "trailer_digest_mismatch")
def _(path: Path) -> None:
    edited(path, lambda data: replace_trailer(data, lambda value: canonical_json(value | {"provenance": 1})))


@bent("golden_vectors_follow_schema", "schema_value_invalid", label="version")
def _(parts: BundleParts) -> None:
    parts.golden["version"] = 2


@bent("golden_vectors_follow_schema", "golden_invalid", label="not zstd")
def _(parts: BundleParts) -> None:
    parts.sections["golden.msgpack.zst"] = b"not a frame"


@bent("golden_vectors_follow_schema", "golden_too_large", label="bomb")
def _(parts: BundleParts) -> None:
    parts.sections["golden.msgpack.zst"] = pack_golden("a" * (2**24 + 1))


@bent("golden_vectors_match_manifest", "golden_manifest_mismatch")
def _(parts: BundleParts) -> None:
    parts.golden["cases"] *= 2


@bent("golden_tokens_fit_model", "token_id_beyond_vocabulary", label="vocabulary")
def _(parts: BundleParts) -> None:
    parts.golden["cases"][0]["greedy_ids"] = [16]


@bent("golden_tokens_fit_model", "golden_case_too_long", label="length")
def _(parts: BundleParts) -> None:
    parts.golden["cases"][0]["prompt_ids"] = [1] * 31


@pytest.mark.parametrize("case", BREACHES, ids=lambda case: f"{case.rule}-{case.label}".rstrip("-"))
def test_a_broken_rule_is_reported_and_nothing_else(case: Breach, tmp_path: Path) -> None:
    path = tmp_path / "broken.bundle"
    case.write(path)

    report = validate(path)

    found = [*report.errors, *report.warnings]
    assert {problem.code for problem in found} == case.codes, "\n".join(map(str, found))
    assert all(problem.where for problem in found)


def test_every_rule_has_an_input_that_breaks_it() -> None:
    rules = {rule.__name__ for layer in LAYERS for rule in layer.rules}
    # A file that changes while it is checked is made in test_validation_report.py.
    assert rules - {"file_is_unchanged"} == {case.rule for case in BREACHES}
