"""Bundles from before the manifest open, show what they say, and call everything else unknown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import older_writers
import pytest

from rowpack_loaders import load, open_bundle, validate
from rowpack_loaders.bundle_digests import digest_bundle
from rowpack_loaders.container import Container
from rowpack_loaders.errors import RowpackError

SAMPLES = Path(__file__).resolve().parents[2] / "schema" / "vectors" / "good" / "older"


def test_the_samples_are_what_the_frozen_writer_writes() -> None:
    written = older_writers.samples()
    assert {path.name for path in SAMPLES.glob("*.bundle")} == set(written)
    for name, data in written.items():
        assert (SAMPLES / name).read_bytes() == data, name


# name → form, family, backend, layout, model, end tokens
SAID = {
    "format-1-qwen3_5-single": ("format_1", "qwen3_5", "trt", "single", "unknown", (2,)),
    "format-1-qwen3_5-split": ("format_1", "qwen3_5", "trt_rtx", "split", "unknown", (2, 7)),
    "format-1-rwkv-single": ("format_1", "rwkv", "trt", "single", "unknown", (0,)),
    "august-2026-qwen3_5-split": ("august_2026", "qwen3_5", "trt", "split", "Qwen/Qwen3.5-0.8B", (2, 5)),
    "august-2026-rwkv-single": ("august_2026", "rwkv", "unknown", "single", "RWKV/rwkv-4-169m-pile", (0,)),
    "trtfb-qwen3_5-single": ("trtfb", "qwen3_5", "trt", "single", "Qwen/Qwen3.5-0.8B", (2, 5)),
    "trtfb-rwkv-single": ("trtfb", "rwkv", "unknown", "single", "RWKV/rwkv-4-169m-pile", (0,)),
}


@pytest.mark.parametrize("name", SAID)
def test_an_older_bundle_shows_what_it_says(name: str) -> None:
    form, family, backend, layout, model_id, eos = SAID[name]
    with open_bundle(SAMPLES / f"{name}.bundle") as bundle:
        assert bundle.is_older
        assert (bundle.header.form.name, bundle.family, bundle.decoder_engine_layout) == (form, family, layout)
        assert bundle.engines["decode"].backend == backend
        manifest: Any = bundle.manifest
        assert manifest["model"]["id"] == model_id
        assert bundle.tokens.eos_ids == eos
        assert (bundle.tokens.vocab_size, bundle.limits.max_cache_length) == (64, 32)
        assert bytes(bundle.section_view(bundle.engines["decode"].section)) == older_writers.plan("decode")
        assert list(bundle.engines) == (["decode", "prefill"] if layout == "split" else ["decode"])


def test_the_samples_are_all_tried() -> None:
    assert {path.stem for path in SAMPLES.glob("*.bundle")} == set(SAID)


def test_states_are_those_that_loaders_of_the_time_allocated() -> None:
    with open_bundle(SAMPLES / "august-2026-qwen3_5-split.bundle") as bundle:
        states = [(state.role, state.input, state.output, state.dtype, state.shape) for state in bundle.states]
        assert states == [
            ("conv", "conv_state_0", "present_conv_0", "float32", (32, 4)),
            ("recurrent", "ssm_state_0", "present_ssm_0", "float32", (4, 4, 4)),
            ("key", "cache_k_0", "present_k_0", "float16", (32, 8)),
            ("value", "cache_v_0", "present_v_0", "float16", (32, 8)),
        ]
        decode, prefill = bundle.engines["decode"], bundle.engines["prefill"]
        assert decode.input("attention_mask").shape == (1, 33)
        assert prefill.input("attention_mask").shape == ("rows", "max_cache_length+rows")
        assert prefill.output("present_k_0").shape == ("rows", 8)
    with open_bundle(SAMPLES / "trtfb-rwkv-single.bundle") as bundle:
        assert [state.input for state in bundle.states[:5]] == [
            "attn_state_0",
            "ff_state_0",
            "num_state_0",
            "den_state_0",
            "max_state_0",
        ]
        assert {state.initial_value for state in bundle.states} == {0.0}, "loaders of that time zeroed every buffer"


UNKNOWN_EVERYWHERE = {
    "/engines/decode/lowering",
    "/engines/decode/onnx_sha256",
    "/engines/decode/target/sm",
    "/layout_decision",
    "/model/inputs",
    "/model/parameter_count",
    "/model/revision",
    "/producer/name",
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_unknown_is_said_and_holds_no_value(name: str) -> None:
    with open_bundle(SAMPLES / f"{name}.bundle") as bundle:
        manifest: Any = bundle.manifest
    unknown = manifest["origin"]["unknown"]
    assert set(unknown) >= UNKNOWN_EVERYWHERE
    for pointer in unknown:
        value = manifest
        for part in pointer.split("/")[1:]:
            value = value[part]
        assert value in (None, "unknown", [], {}, ["unknown"]), pointer
    assert ("/model/id" in unknown) == name.startswith("format-1")
    assert "/states" in manifest["origin"]["assumed"]


@pytest.mark.parametrize("name", SAID)
def test_an_older_bundle_is_not_loaded_and_not_valid(name: str) -> None:
    path = SAMPLES / f"{name}.bundle"
    for use in (load, digest_bundle):
        with pytest.raises(RowpackError, match="rowpack migrate") as caught:
            use(path)
        assert caught.value.code == "container_form_superseded"
    codes = {problem.code for problem in validate(path).errors}
    assert codes & {"container_form_superseded", "bundle_manifest_missing"}


def august(**changes: Any) -> bytes:
    """Return a container of August 2026 with changes to its header's facts."""
    facts = {**older_writers.facts("rwkv", "x", "fp32"), **changes}
    facts = {key: value for key, value in facts.items() if value is not ...}
    config = json.dumps(older_writers.RWKV_CONFIG).encode()
    return older_writers.august_2026(facts, {"engine_plan": b"plan", "config.json": config})


def august_config(**changes: Any) -> bytes:
    """Return a container of August 2026 with changes to its config."""
    config = {**older_writers.QWEN_CONFIG["text_config"], "decoder_engine_layout": "single", **changes}
    facts = older_writers.facts("qwen3_5", "x", "fp16")
    return older_writers.august_2026(facts, {"engine_plan": b"plan", "config.json": json.dumps(config).encode()})


def format_1(family: str = "rwkv", **changes: Any) -> bytes:
    """Return a container of format 1 with changes to its runtime.json."""
    base = older_writers.RWKV_RUNTIME if family == "rwkv" else older_writers.QWEN_RUNTIME
    runtime = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    return older_writers.format_1(family, "trt", {"engine.plan": b"plan", "runtime.json": json.dumps(runtime).encode()})


REFUSED: dict[str, tuple[bytes, str]] = {
    "no family": (august(family=...), "header_key_missing"),
    "a family that is no word": (august(family="Rwkv 4"), "header_identifier_invalid"),
    "a family nobody knew": (august(family="llama"), "older_family_unknown"),
    "no cache length": (august(max_cache_length=...), "older_description_malformed"),
    "cache length true": (august(max_cache_length=True), "older_description_malformed"),
    "cache length 0": (august(max_cache_length=0), "older_description_malformed"),
    "cache length 2^40": (august(max_cache_length=2**40), "older_description_malformed"),
    "another precision": (august(precision="int4"), "older_description_malformed"),
    "tensor names of its own": (august(io_map={"token_id": "ids"}), "older_description_malformed"),
    "quantization that is no word": (august(quantization="!"), "older_description_malformed"),
    "two profiles in one engine": (august_config(decoder_engine_layout="dual_profile"), "older_description_malformed"),
    "split without its engine": (august_config(decoder_engine_layout="split"), "section_missing"),
    "a layer of another kind": (
        august_config(layer_types=["linear_attention", "sliding"]),
        "older_description_malformed",
    ),
    "more layers than kinds": (august_config(num_hidden_layers=3), "older_description_malformed"),
    "a billion layers": (august_config(layer_types=None, num_hidden_layers=10**9), "older_description_malformed"),
    "an end token beyond": (august_config(eos_token_id=64), "older_description_malformed"),
    "an end token that is text": (august_config(eos_token_id="</s>"), "older_description_malformed"),
    "positions beyond": (august_config(max_position_embeddings=2**60), "older_description_malformed"),
    "a key too many": (format_1(extra=1), "older_description_malformed"),
    "a key missing": (format_1(pad_token_id=...), "older_description_malformed"),
    "a size that is a fraction": (format_1(hidden_size=16.0), "older_description_malformed"),
    "several RWKV heads": (format_1(num_attention_heads=4), "older_description_malformed"),
    "a head narrower than RWKV": (format_1(head_dim=4), "older_description_malformed"),
    "a backend that is no word": (august_config(engine_backend="!"), "older_description_malformed"),
    "four parts": (format_1(tensor_parallel_size=4), "older_description_malformed"),
    "a billion RWKV layers": (format_1(num_hidden_layers=10**9), "older_description_malformed"),
    "kinds that contradict": (format_1("qwen3_5", num_mamba_layers=2), "older_description_malformed"),
    "a cache row too wide": (
        format_1("qwen3_5", num_key_value_heads=2**20, head_dim=2**20),
        "older_description_malformed",
    ),
    "split by its word, without its engine": (format_1("qwen3_5", decoder_engine_layout="split"), "section_missing"),
    "no engine": (older_writers.format_1("rwkv", "trt", {"runtime.json": b"{}"}), "older_description_malformed"),
    "nothing but an engine": (older_writers.format_1("rwkv", "trt", {"engine.plan": b"x"}), "bundle_manifest_missing"),
    "no config": (
        older_writers.august_2026(older_writers.facts("rwkv", "x", "fp32"), {"engine_plan": b"x"}),
        "section_missing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_described_is_refused_with_a_place(name: str, tmp_path: Path) -> None:
    data, code = REFUSED[name]
    path = tmp_path / "x.bundle"
    path.write_bytes(data)
    with pytest.raises(RowpackError) as caught:
        open_bundle(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value.problem.where)


def with_entry(change: Callable[[dict[str, Any]], object], magic: bytes) -> bytes:
    """Return a TRTFB or August container whose first section entry is changed."""
    sections = {"engine_plan": b"plan", "config.json": b"{}"}
    data = older_writers.august_2026(older_writers.facts("rwkv", "x", "fp32"), sections, magic=magic)
    (length,) = struct.unpack_from("<Q", data, 8)
    header = json.loads(data[16 : 16 + length])
    change(header["sections"])
    return older_writers.container(magic, json.dumps(header, indent=2).encode(), sections)


ENTRIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "length instead of size": (
        lambda s: s.update(engine_plan={"offset": 0, "length": 4, "size": 4}),
        "header_key_unknown",
    ),
    "no size": (lambda s: s.update(engine_plan={"offset": 0}), "header_key_missing"),
    "a third key": (lambda s: s["engine_plan"].update(sha256="0"), "header_key_unknown"),
    "size true": (lambda s: s["engine_plan"].update(size=True), "section_number_invalid"),
    "size 1.0": (lambda s: s["engine_plan"].update(size=1.0), "section_number_invalid"),
    "size -1": (lambda s: s["engine_plan"].update(size=-1), "section_number_invalid"),
    "past the end": (lambda s: s["engine_plan"].update(size=2**40), "section_beyond_file"),
    "overlap": (lambda s: s["config.json"].update(offset=0), "section_overlap"),
    "a path out": (lambda s: s.update({"../x": {"offset": 0, "size": 0}}), "section_name_unsafe"),
    "case twins": (lambda s: s.update({"Config.json": {"offset": 0, "size": 0}}), "section_names_differ_by_case"),
    "not an object": (lambda s: s.update(engine_plan=[0, 4]), "section_entry_invalid"),
}


@pytest.mark.parametrize("magic", [older_writers.BUNDLE_MAGIC, older_writers.TRTFB_MAGIC], ids=["august", "trtfb"])
@pytest.mark.parametrize("name", ENTRIES)
def test_the_one_strict_check_serves_the_older_headers(name: str, magic: bytes, tmp_path: Path) -> None:
    change, code = ENTRIES[name]
    path = tmp_path / "x.bundle"
    path.write_bytes(with_entry(change, magic))
    with pytest.raises(RowpackError) as caught:
        Container.open(path)
    assert caught.value.code == code


def test_a_header_that_mixes_the_forms_counts_as_format_1(tmp_path: Path) -> None:
    path = tmp_path / "x.bundle"
    header = {"format": 1, "model_id": "x", **json.loads('{"family":"rwkv","task":"text_generation","backend":"trt"}')}
    path.write_bytes(older_writers.container(older_writers.BUNDLE_MAGIC, json.dumps(header).encode(), {}))
    with pytest.raises(RowpackError) as caught:
        Container.open(path)
    assert caught.value.code == "header_key_missing"
    assert "header_key_unknown" in {problem.code for problem in caught.value.problems}
