"""Every rule about what the manifest says of the whole, with the input that breaks it alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from rule_breaches import Breach, Breaches, assert_breach_is_told
from synthetic_bundles import BundleParts, rewrite_manifest, single_parts, tensor
from tiny_engines import engine_section

from rowpack_loaders.validation.runner import LAYERS

BREACHES = Breaches()


# -- references --------------------------------------------------------------------------------------------------


@BREACHES.bent("header_matches_manifest", "header_manifest_mismatch", "runtime_json_family_unknown", label="family")
def _(parts: BundleParts) -> None:
    parts.family = "mamba"


@BREACHES.bent("header_matches_manifest", "header_manifest_mismatch", label="backend")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["backend"] = "trt"


@BREACHES.written("every_section_is_declared", "section_undeclared", "content_digest_mismatch", "trailer_missing")
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["sections"].pop("tokenizer.json"))


@BREACHES.written(
    "every_declared_section_is_there", "section_declared_missing", "content_digest_mismatch", "trailer_missing"
)
def _(path: Path) -> None:
    BundleParts(manifest=BundleParts().manifest).write(path)
    rewrite_manifest(
        path, lambda value: value["sections"].update({"extra": {**value["sections"]["engine.onnx"], "required": False}})
    )


@BREACHES.written(
    "every_declared_section_is_there",
    "section_length_mismatch",
    "content_digest_mismatch",
    "trailer_missing",
    label="length",
)
def _(path: Path) -> None:
    BundleParts().write(path)
    rewrite_manifest(path, lambda value: value["sections"]["engine.onnx"].update(length=13))


@BREACHES.bent("references_are_declared", "section_reference_missing")
def _(parts: BundleParts) -> None:
    parts.manifest["tokenizer"]["chat_template_section"] = "chat_template.jinja"


@BREACHES.bent("required_sections_are_referred_to", "section_unreferenced")
def _(parts: BundleParts) -> None:
    parts.sections["extra.bin"] = b"x"


@BREACHES.bent("needed_sections_are_required", "section_needed_optional")
def _(parts: BundleParts) -> None:
    parts.declared["engine.onnx"] = {"required": False}


@BREACHES.bent(
    "each_use_has_its_own_section", "section_used_twice", "engine_section_unexpected", "onnx_tensor_mismatch"
)
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["section"] = "engine.onnx"
    parts.without = {"prefill.onnx"}


@BREACHES.bent("encodings_fit_uses", "section_encoding_unexpected")
def _(parts: BundleParts) -> None:
    parts.declared["engine.onnx"] = {"encoding": "zstd"}


@BREACHES.bent("encodings_fit_uses", "section_encoding_unexpected", label="golden vectors raw")
def _(parts: BundleParts) -> None:
    parts.declared["golden.msgpack.zst"] = {"encoding": "raw"}


# -- engines -----------------------------------------------------------------------------------------------------


@BREACHES.bent(
    "layout_matches_engines", "layout_engines_mismatch", "layout_decision_mismatch", label="single with two engines"
)
def _(parts: BundleParts) -> None:
    parts.manifest["decoder_engine_layout"] = "single"


@BREACHES.bent("layout_matches_engines", "layout_engines_mismatch", parts=single_parts, label="split with one engine")
def _(parts: BundleParts) -> None:
    parts.manifest["decoder_engine_layout"] = "split"
    parts.manifest["layout_decision"]["layout"] = "split"


@BREACHES.bent(
    "layout_matches_engines",
    "engine_section_unused",
    "section_unreferenced",
    parts=single_parts,
    label="stray prefill section",
)
def _(parts: BundleParts) -> None:
    parts.without = set()


@BREACHES.bent("engine_sections_have_their_names", "engine_section_unexpected")
def _(parts: BundleParts) -> None:
    parts.without = {"prefill.onnx"}
    parts.sections["chunks.onnx"] = engine_section("prefill")
    parts.manifest["engines"]["prefill"]["section"] = "chunks.onnx"


@BREACHES.bent("decision_matches_layout", "layout_decision_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["layout_decision"]["layout"] = "single"


@BREACHES.bent("row_ranges_fit", "engine_rows_invalid", label="decode of two rows")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["rows"]["max"] = 2


@BREACHES.bent("row_ranges_fit", "engine_rows_invalid", label="prefill beyond the limit")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["rows"]["max"] = 32


@BREACHES.bent("only_prefill_serves_decode", "engine_serves_decode_invalid", label="the decode engine")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["serves_decode"] = True


@BREACHES.bent("only_prefill_serves_decode", "engine_serves_decode_invalid", label="weights that no session packs")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["serves_decode"] = True


@BREACHES.bent("tensor_names_are_unique", "engine_tensor_duplicate", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["inputs"].append(tensor("cache_k_0", "float32", ["cache_rows", 2], "state"))


@BREACHES.bent("roles_are_complete", "engine_role_count", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["outputs"].pop(0)


@BREACHES.bent("roles_are_complete", "engine_dtype_invalid", "onnx_tensor_mismatch", label="dtype")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][0]["dtype"] = "int64"


@BREACHES.bent("row_inputs_have_row_shapes", "engine_shape_invalid", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][0]["shape"] = [1]


@BREACHES.bent("logits_are_one_vocabulary_row", "engine_shape_invalid", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["outputs"][0]["shape"] = ["rows", 16]


# -- states ------------------------------------------------------------------------------------------------------


@BREACHES.bent(
    "state_tensors_are_unique",
    "state_duplicate",
    "state_role_repeated",
    "layout_decision_number_mismatch",
    "runtime_json_state_mismatch",
)
def _(parts: BundleParts) -> None:
    parts.manifest["states"].append(dict(parts.manifest["states"][0]))


@BREACHES.bent("states_are_engine_tensors", "state_tensor_missing", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"].pop()


@BREACHES.bent("engine_states_are_listed", "state_unlisted", "state_cache_unpaired", "layout_decision_number_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["states"].pop()


@BREACHES.bent("state_dtypes_agree", "state_dtype_mismatch", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["inputs"][3]["dtype"] = "float16"


@BREACHES.bent("state_shapes_agree", "state_shape_mismatch", "onnx_tensor_mismatch", label="replaced")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["outputs"][1]["shape"] = [6, 3]


@BREACHES.bent(
    "state_shapes_agree", "state_shape_mismatch", "onnx_tensor_mismatch", label="decode gives more than one row"
)
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["outputs"][2]["shape"] = ["rows", 2]


@BREACHES.bent("state_shapes_agree", "state_shape_mismatch", "onnx_tensor_mismatch", label="cache width")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["inputs"][4]["shape"] = ["cache_rows", 3]


@BREACHES.bent("appended_states_hold_the_cache", "state_rows_mismatch", "state_cache_unpaired")
def _(parts: BundleParts) -> None:
    parts.manifest["states"][1]["shape"] = [31, 2]


@BREACHES.bent("updates_fit_roles", "state_update_invalid")
def _(parts: BundleParts) -> None:
    parts.manifest["states"][0]["rewindable"] = True


@BREACHES.bent(
    "layers_have_each_state_once",
    "state_role_repeated",
    "state_cache_unpaired",
    "state_update_invalid",
    "runtime_json_state_mismatch",
)
def _(parts: BundleParts) -> None:
    parts.manifest["states"][1]["role"] = "conv"
    parts.manifest["states"][1]["layer"] = 0


@BREACHES.bent("caches_come_in_pairs", "state_cache_unpaired", "runtime_json_state_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["states"][1]["layer"] = 0


# -- decision ----------------------------------------------------------------------------------------------------


@BREACHES.bent("decision_numbers_are_those_of_the_bundle", "layout_decision_number_mismatch", label="budget")
def _(parts: BundleParts) -> None:
    parts.manifest["layout_decision"]["budget_bytes"] += 1


@BREACHES.bent("decision_numbers_are_those_of_the_bundle", "layout_decision_number_mismatch", label="weights")
def _(parts: BundleParts) -> None:
    parts.manifest["layout_decision"]["weight_bytes"] -= 1


# -- limits ------------------------------------------------------------------------------------------------------


@BREACHES.bent("token_ids_are_in_vocabulary", "token_id_beyond_vocabulary")
def _(parts: BundleParts) -> None:
    parts.manifest["tokens"]["eos"].append({"id": 16, "sources": ["tokenizer_config.json"]})


@BREACHES.bent("eos_ids_are_listed_once", "token_id_duplicate")
def _(parts: BundleParts) -> None:
    parts.manifest["tokens"]["eos"] *= 2


@BREACHES.bent("vocabulary_sizes_agree", "vocabulary_size_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["model"]["hyper_parameters"]["vocab_size"] = 17


@BREACHES.bent("cache_fits_positions", "cache_longer_than_positions")
def _(parts: BundleParts) -> None:
    parts.manifest["limits"]["max_position_embeddings"] = 31


@BREACHES.bent("tokenizer_is_told_truly", "tokenizer_missing_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["tokenizer"]["missing"] = True


@pytest.mark.parametrize("case", BREACHES, ids=str)
def test_a_broken_rule_is_reported_and_nothing_else(case: Breach, tmp_path: Path) -> None:
    assert_breach_is_told(case, tmp_path / "broken.bundle")


def test_every_rule_has_an_input_that_breaks_it() -> None:
    names = {"references", "engines", "decision", "states", "limits"}
    rules = {rule.__name__ for layer in LAYERS if layer.name in names for rule in layer.rules}
    assert rules == {case.rule for case in BREACHES}
