"""Vectors about the manifest: its text, its schema, and what it says of the rest of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bad_vector import VectorList
from forged_bundles import MANIFEST, PAYLOAD_START, bent, forged, good_bundle, header_of, patched
from synthetic_bundles import BundleParts

GOOD = good_bundle()
VECTORS = VectorList()

Bend = Callable[[dict[str, Any]], object]


def add_texts() -> None:
    """Add manifests that are not strict JSON."""
    texts: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
        "byte-order-mark": (lambda text: b"\xef\xbb\xbf" + text, "json_byte_order_mark", "A byte order mark."),
        "not-utf8": (lambda text: text.replace(b'"tiny"', b'"tin\xff"'), "json_not_utf8", "A byte that is not UTF-8."),
        "cut": (lambda text: text[:-1], "json_malformed", "The last brace is missing."),
        "duplicate-key": (
            lambda text: text.replace(b'"limits":', b'"limits":{},"limits":'),
            "json_duplicate_key",
            "The limits twice.",
        ),
        "section-twice": (
            lambda text: text.replace(b'"runtime.json":{', b'"runtime.json":{},"runtime.json":{'),
            "json_duplicate_key",
            "A section twice in the manifest's section table.",
        ),
        "nan": (lambda text: text.replace(b":0.0001", b":NaN"), "json_not_finite", "NaN as the tolerance."),
        "deep-nesting": (
            lambda text: text.replace(b'"quantization":null', b'"quantization":' + b"[" * 80 + b"]" * 80),
            "json_too_deep",
            "Arrays 80 deep.",
        ),
        "array": (lambda text: b"[]", "json_not_an_object", "An array instead of an object."),
    }
    for name, (change, code, what) in texts.items():
        VECTORS.refused(f"manifest-{name}", code, what, forged(GOOD, manifest_text=change))
    VECTORS.invalid(
        "manifest-not-canonical",
        ("manifest_not_canonical",),
        "A space that canonical JSON does not have.",
        forged(GOOD, manifest_text=lambda text: text.replace(b":", b": ", 1)),
    )
    VECTORS.invalid(
        "manifest-missing",
        ("bundle_manifest_missing", "sections_out_of_order"),
        "The header lists no manifest.json: read as a bundle from before there were manifests, which loads as such.",
        forged(GOOD, header=lambda header: rename(header["sections"], MANIFEST, "manifest.txt")),
        load="container_form_superseded",
    )
    VECTORS.refused(
        "manifest-changed-in-place",
        "trailer_digest_mismatch",
        "One digit of the manifest changed with a hex editor; only the trailer and the content digest can tell.",
        patched(GOOD, GOOD.index(b'"max_cache_length":32', PAYLOAD_START) + 19, b"64"),
        errors=(
            "content_digest_mismatch",
            "runtime_json_mismatch",
            "state_rows_mismatch",
            "trailer_digest_mismatch",
        ),
    )


def rename(table: dict[str, Any], old: str, new: str) -> None:
    """Rename a key and keep the order."""
    entries = {new if name == old else name: entry for name, entry in table.items()}
    table.clear()
    table.update(entries)


def add_versions() -> None:
    """Add versions and features that a reader cannot know."""
    versions = {
        "2.0": "manifest_schema_unsupported",
        "0.9": "manifest_schema_unsupported",
        "1": "manifest_malformed",
        "1.x": "manifest_malformed",
        "1.0.0": "manifest_malformed",
    }
    for version, code in versions.items():
        data = forged(GOOD, manifest=lambda m, version=version: m.update(schema_version=version))
        VECTORS.refused(f"schema-version-{version}", code, f"schema_version {version!r}.", data)
    VECTORS.refused(
        "schema-version-number",
        "manifest_malformed",
        "schema_version as a number.",
        forged(GOOD, manifest=lambda m: m.update(schema_version=1.0)),
    )
    VECTORS.refused(
        "required-feature-unknown",
        "manifest_feature_unsupported",
        "A feature that no reader of schema 1.0 can know.",
        forged(GOOD, manifest=lambda m: m.update(required_features=["telepathy"])),
    )


SCHEMA_BREACHES: dict[str, tuple[Bend, tuple[str, ...], str | None]] = {
    "key-missing": (lambda m: m["producer"].pop("version"), ("schema_key_missing",), None),
    "key-unknown": (lambda m: m.update(flavour="vanilla"), ("schema_key_unknown",), None),
    "integer-as-1.0": (
        lambda m: m["limits"].update(prefill_rows=16.0),
        ("schema_value_invalid",),
        "manifest_malformed",
    ),
    "integer-as-true": (
        lambda m: m["limits"].update(prefill_rows=True),
        ("schema_value_invalid",),
        "manifest_malformed",
    ),
    "integer-negative": (
        lambda m: m["tokens"]["eos"][0].update(id=-1),
        ("schema_value_invalid",),
        "manifest_malformed",
    ),
    "text-for-an-object": (lambda m: m.update(engines="none"), ("schema_value_invalid",), "manifest_malformed"),
    "null-for-an-array": (lambda m: m.update(states=None), ("schema_value_invalid",), "manifest_malformed"),
    "sha256-of-another-form": (
        lambda m: m["model"]["inputs"][0].update(sha256="sha256:" + "1" * 64),
        ("schema_value_invalid",),
        None,
    ),
}


CROSS_BREACHES: dict[str, tuple[Bend, tuple[str, ...], str | None, str]] = {
    "family-other-than-header": (
        lambda m: m["model"].update(family="rwkv"), ("header_manifest_mismatch",), None,
        "The manifest names another family than the header."),
    "backend-other-than-header": (
        lambda m: m["engines"]["decode"].update(backend="elsewhere"), ("header_manifest_mismatch",), "runtime_unknown",
        "The decode engine is for another backend than the header says."),
    "section-undeclared": (
        lambda m: m["sections"].pop("tokenizer.json"), ("section_undeclared",), None,
        "A section that the manifest does not declare."),
    "section-declared-but-missing": (
        lambda m: m["sections"].update({"extra.bin": {**m["sections"]["runtime.json"], "required": False}}),
        ("section_declared_missing",), None, "A section that the header does not list."),
    "manifest-declares-itself": (
        lambda m: m["sections"].update({"manifest.json": {**m["sections"]["runtime.json"], "required": False}}),
        ("section_declared_missing", "section_digest_mismatch"), None, "The manifest declares itself."),
    "section-length-mismatch": (
        lambda m: m["sections"]["engine.onnx"].update(length=1), ("section_length_mismatch",), None,
        "The manifest gives another length than the header."),
    "section-digest-mismatch": (
        lambda m: m["sections"]["engine.onnx"].update(sha256="0" * 64),
        ("section_digest_mismatch", "onnx_digest_mismatch"), "section_digest_mismatch",
        "The engine does not have the digest that the manifest gives."),
    "engine-used-twice": (
        lambda m: m["engines"]["prefill"].update(section="engine.onnx"),
        ("section_used_twice", "engine_section_unexpected", "engine_section_unused", "onnx_tensor_mismatch",
         "onnx_digest_mismatch"),
        "manifest_not_runnable", "Both engines name one section."),
    "engine-section-missing": (
        lambda m: m["engines"]["decode"].update(section="engine.plan"),
        ("section_reference_missing", "engine_section_unused"), "section_missing",
        "The decode engine names a section that is not there."),
    "weights-section-missing": (
        lambda m: m["weights"].update(section="w.safetensors"),
        ("section_reference_missing", "weights_section_unexpected"), "section_missing",
        "The weights name a section that is not there."),
    "engine-marked-optional": (
        lambda m: m["sections"]["engine.onnx"].update(required=False), ("section_needed_optional",), None,
        "The decode engine is marked as one that may be skipped."),
    "engine-said-to-be-packed": (
        lambda m: m["sections"]["engine.onnx"].update(encoding="zstd"), ("section_encoding_unexpected",), None,
        "The manifest says that the engine is zstd."),
    "layout-single-with-two-engines": (
        lambda m: m.update(decoder_engine_layout="single"),
        ("layout_engines_mismatch", "layout_decision_mismatch"), "manifest_not_runnable",
        "Two engines in a single bundle."),
    "prefill-rows-4097": (
        lambda m: (m["engines"]["prefill"]["rows"].update(max=4097), m["limits"].update(prefill_rows=4097)),
        ("engine_rows_invalid", "schema_value_invalid"), "manifest_not_runnable", "More rows than a call may have."),
    "prefill-rows-beyond-the-limit": (
        lambda m: m["limits"].update(prefill_rows=8), ("engine_rows_invalid",), None,
        "The prefill engine takes more rows than the limits say."),
    "decode-serves-decode": (
        lambda m: m["engines"]["decode"].update(serves_decode=True), ("engine_serves_decode_invalid",), None,
        "The decode engine is said to take its own place."),
    "serves-decode-without-packed-weights": (
        lambda m: m["engines"]["prefill"].update(serves_decode=True), ("engine_serves_decode_invalid",), None,
        "The prefill engine is said to run the steps, and no session packs weights."),
    "serves-decode-is-a-word": (
        lambda m: m["engines"]["prefill"].update(serves_decode="yes"), ("schema_value_invalid",),
        "manifest_malformed", "Whether the prefill engine runs the steps is a word."),
    "eos-beyond-the-vocabulary": (
        lambda m: m["tokens"]["eos"].append({"id": 16, "sources": ["x"]}), ("token_id_beyond_vocabulary",), None,
        "An end token that no logit is for."),
    "eos-twice": (
        lambda m: m["tokens"].update(eos=m["tokens"]["eos"] * 2), ("token_id_duplicate",), None, "An end token twice."),
    "vocabulary-of-two-sizes": (
        lambda m: m["model"]["hyper_parameters"].update(vocab_size=17), ("vocabulary_size_mismatch",), None,
        "Tokens and model disagree about the vocabulary."),
    "state-dtype-differs": (
        lambda m: m["states"][0].update(dtype="float16"),
        ("state_dtype_mismatch", "layout_decision_number_mismatch"), "manifest_not_runnable",
        "The state table has another dtype than the engines."),
    "state-shape-differs": (
        lambda m: m["states"][1].update(shape=[32, 3]),
        ("state_shape_mismatch", "layout_decision_number_mismatch", "runtime_json_state_mismatch"),
        "manifest_not_runnable", "The state table has a wider cache than the engines."),
    "state-missing": (
        lambda m: m["states"].pop(0),
        ("state_unlisted", "layout_decision_number_mismatch", "runtime_json_state_mismatch"), "manifest_not_runnable",
        "An engine carries a state that the table does not list."),
    "state-cache-too-short": (
        lambda m: (m["states"][1].update(shape=[31, 2]), m["states"][2].update(shape=[31, 2])),
        ("state_rows_mismatch",), "manifest_not_runnable", "The caches have fewer rows than a sequence may have."),
    "state-huge": (
        lambda m: m["states"][0].update(shape=[2**31 - 1] * 2),
        ("state_shape_mismatch", "layout_decision_number_mismatch", "runtime_json_state_mismatch"),
        "manifest_not_runnable", "A state of 18 million million bytes."),
    "decode-input-not-in-the-graph": (
        lambda m: m["engines"]["decode"]["inputs"][1].update(name="position"), ("onnx_tensor_mismatch",),
        "engine_io_mismatch", "The manifest declares an input that the graph does not have."),
    "logits-of-another-size": (
        lambda m: m["engines"]["decode"]["outputs"][0].update(shape=[1, 17]),
        ("onnx_tensor_mismatch", "engine_shape_invalid"), "engine_io_mismatch", "One logit more than the vocabulary."),
    "decision-number-wrong": (
        lambda m: m["layout_decision"].update(state_bytes=1), ("layout_decision_number_mismatch",), None,
        "The recorded decision counts other states than there are."),
    "tokenizer-said-to-be-missing": (
        lambda m: m["tokenizer"].update(missing=True), ("tokenizer_missing_mismatch",), None,
        "The manifest says there is no tokenizer, and names one."),
}  # fmt: skip


def add_breaches() -> None:
    """Add manifests that break the schema, and manifests that contradict the file or themselves."""
    for name, (change, errors, load) in SCHEMA_BREACHES.items():
        VECTORS.invalid(
            f"manifest-{name}", errors, "A value that the schema refuses.", forged(GOOD, manifest=change), load=load
        )
    VECTORS.invalid(
        "manifest-integer-not-exact",
        ("manifest_integer_not_exact",),
        "2^53 + 1, which readers that hold numbers as doubles take for 2^53.",
        forged(GOOD, manifest=lambda m: m["model"]["hyper_parameters"].update(seed=2**53 + 1)),
    )
    VECTORS.invalid(
        "content-digest-mismatch",
        ("content_digest_mismatch",),
        "The content digest is that of another manifest.",
        forged(GOOD, manifest=lambda m: m["model"].update(id="other"), digest=False),
    )
    VECTORS.invalid(
        "key-of-a-newer-minor",
        (),
        "A key that schema 1.0 does not have, in a manifest of 1.1: ignored.",
        forged(GOOD, manifest=lambda m: m.update(schema_version="1.1", flavour="vanilla")),
        warnings=("schema_key_unknown",),
    )
    for name, (change, errors, load, what) in CROSS_BREACHES.items():
        warnings = ("section_unreferenced",) if {"section_reference_missing", "section_used_twice"} & {*errors} else ()
        VECTORS.invalid(name, errors, what, forged(GOOD, manifest=change), load=load, warnings=warnings)


def add_runtime_json() -> None:
    """Add bundles whose runtime.json is not what loaders before the manifest demand."""

    def key_more(parts: BundleParts) -> None:
        parts.runtime_json["rope_theta"] = 1e7

    def key_less(parts: BundleParts) -> None:
        del parts.runtime_json["conv_dim"]

    def other_cache(parts: BundleParts) -> None:
        parts.runtime_json["max_cache_length"] = 64

    def other_heads(parts: BundleParts) -> None:
        parts.runtime_json["head_dim"] = 4

    def other_word(parts: BundleParts) -> None:
        parts.runtime_json["decoder_engine_layout"] = "split"

    def not_json(parts: BundleParts) -> None:
        parts.sections["runtime.json"] = b"{"

    changes: dict[str, tuple[Callable[[BundleParts], None], str, str]] = {
        "key-more": (key_more, "schema_key_unknown", "A 21st key, which old loaders refuse."),
        "key-less": (key_less, "schema_key_missing", "19 keys."),
        "other-cache": (other_cache, "runtime_json_mismatch", "Another cache length than the manifest."),
        "other-heads": (other_heads, "runtime_json_state_mismatch", "Heads that do not make up the cache's width."),
        "other-word": (other_word, "runtime_json_mismatch", "Another layout word than the manifest records."),
        "not-json": (not_json, "json_malformed", "It is not JSON."),
    }
    for name, (change, code, what) in changes.items():
        VECTORS.invalid(f"runtime-json-{name}", (code,), what, bent(change))

    def untrue(parts: BundleParts) -> None:
        parts.runtime_json["decoder_engine_layout"] = "split"
        parts.manifest["runtime_json"]["decoder_engine_layout"] = "split"

    VECTORS.invalid(
        "runtime-json-split-of-a-single",
        ("runtime_json_layout_untrue",),
        "Loaders before the manifest are told of a prefill engine that is not there.",
        bent(untrue, "single"),
    )


add_texts()
add_versions()
add_breaches()
add_runtime_json()
assert header_of(GOOD)["sections"][MANIFEST]["offset"] == 0
