"""Each kind of difference between two bundles is told in its part, in words, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rowpack.bundle import BundleWriter
from rowpack.cli import main
from rowpack.comparison import Comparison, compare_bundles
from rowpack_loaders import open_bundle
from rowpack_loaders.safetensors_header import parse_header

Bundles = dict[tuple[str, str], Path]
Change = Callable[[dict[str, Any], dict[str, bytes]], object]


def rewritten(source: Path, target: Path, change: Change, provenance: dict[str, Any] | None = None) -> Path:
    """Write a bundle again after ``change`` was made to its manifest and sections."""
    with open_bundle(source) as bundle:
        manifest: dict[str, Any] = deepcopy(bundle.manifest)
        sections = {name: bytes(bundle.section_view(name)) for name in bundle.sections if name != "manifest.json"}
        trailer: dict[str, Any] = bundle.trailer() or {}
        family, backend = bundle.family, bundle.backend
    entries = manifest.pop("sections")
    change(manifest, sections)
    with BundleWriter(target, family=family, backend=backend, manifest_reserve_bytes=16384) as writer:
        for name, data in sections.items():
            entry = entries.get(name, {"media_type": "text/plain", "encoding": "raw", "required": False})
            options = {key: entry[key] for key in ("media_type", "encoding", "required")}
            writer.add_section(name, data, **options)
        writer.finish(manifest, trailer["provenance"] if provenance is None else provenance)
    return target


@pytest.fixture
def compared(tiny_bundles: Bundles, tmp_path: Path) -> Callable[[Change], Comparison]:
    """Compare the tiny split Qwen3.5 bundle with itself after a change."""

    def compare(change: Change) -> Comparison:
        source = tiny_bundles["qwen3_5", "split"]
        return compare_bundles(source, rewritten(source, tmp_path / "changed.bundle", change))

    return compare


def test_a_bundle_does_not_differ_from_its_copy(tiny_bundles: Bundles, tmp_path: Path) -> None:
    for source in tiny_bundles.values():
        copy = tmp_path / source.name
        copy.write_bytes(source.read_bytes())
        comparison = compare_bundles(source, copy)
        assert (comparison.same_file, comparison.same_content, comparison.differences) == (True, True, ())


def test_weights_are_told_by_tensor(compared: Callable[[Change], Comparison]) -> None:
    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        data = bytearray(sections["weights.safetensors"])
        entry = parse_header(bytes(data), total_bytes=len(data), where="x")["final_norm.weight"]
        values = np.frombuffer(data, np.float32, 16, entry.offset_bytes)
        values[3:5] += np.float32(0.25)
        sections["weights.safetensors"] = bytes(data)

    comparison = compared(change)
    assert comparison.parts == ["weights"]
    assert [str(difference) for difference in comparison.differences] == [
        "final_norm.weight: 2 of 16 values differ, at most 0.25 apart (F32 [16])"
    ]
    assert not comparison.same_content


def test_weights_of_other_names_and_forms(compared: Callable[[Change], Comparison]) -> None:
    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        data = sections["weights.safetensors"].replace(b'"final_norm.weight"', b'"final_norm.wxxght"')
        sections["weights.safetensors"] = data.replace(b'"shape":[4,4]', b'"shape":[2,8]')

    found = {difference.where: difference.message for difference in compared(change).of("weights")}
    assert found["final_norm.weight"] == "only the first has it"
    assert found["final_norm.wxxght"] == "only the second has it"


def edit_graph(section: str, edit: Callable[[onnx.GraphProto], object]) -> Change:
    """Return a change of one ONNX section through the onnx package."""

    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        model = onnx.load_model_from_string(sections[section])
        edit(model.graph)
        sections[section] = model.SerializeToString()

    return change


def test_graphs_are_told_by_operators_and_nodes(compared: Callable[[Change], Comparison]) -> None:
    def edit(graph: onnx.GraphProto) -> None:
        (softmax, *_) = (node for node in graph.node if node.op_type == "Softmax")
        softmax.op_type = "LogSoftmax"
        (gather, *_) = (node for node in graph.node if node.op_type == "Gather")
        gather.attribute.append(onnx.helper.make_attribute("axis", 1))

    comparison = compared(edit_graph("engine.onnx", edit))
    assert comparison.parts == ["graph"]
    told = [str(difference) for difference in comparison.differences]
    assert "engine.onnx: LogSoftmax: 0 calls → 1 calls" in told
    assert "engine.onnx: Softmax: 1 calls → 0 calls" in told
    assert any(line.endswith("is another operator: Softmax → LogSoftmax") for line in told)
    assert any(line.endswith("Gather with other attribute axis") for line in told)
    assert len(told) == 4


def test_constants_and_added_nodes(compared: Callable[[Change], Comparison]) -> None:
    def edit(graph: onnx.GraphProto) -> None:
        frequencies = next(tensor for tensor in graph.initializer if "frequencies" in tensor.name)
        frequencies.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(frequencies) * np.float32(2), frequencies.name)
        )
        graph.node.append(onnx.helper.make_node("Erf", ["logits"], ["again"], name="another"))

    told = [str(difference) for difference in compared(edit_graph("prefill.onnx", edit)).of("graph")]
    assert told == [
        "prefill.onnx: Erf: 0 calls → 1 calls",
        "prefill.onnx: node another: only the second has it",
        "prefill.onnx: constant constants.rotary.frequencies: has another value",
    ]


def test_a_graph_that_is_only_encoded_otherwise(compared: Callable[[Change], Comparison]) -> None:
    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        sections["engine.onnx"] += b"\x32\x01x"  # ModelProto.doc_string

    assert [str(difference) for difference in compared(change).differences] == [
        "engine.onnx: the same nodes and constants, encoded otherwise"
    ]


def test_tokenizers_are_told_by_token(compared: Callable[[Change], Comparison]) -> None:
    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        tokenizer = json.loads(sections["tokenizer.json"])
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["w7"], vocabulary["w8"] = 8, 7
        vocabulary["new"] = vocabulary.pop("w9")
        tokenizer["model"]["unk_token"] = "w2"
        sections["tokenizer.json"] = json.dumps(tokenizer).encode()

    comparison = compared(change)
    assert comparison.parts == ["tokenizer"]
    assert [str(difference) for difference in comparison.differences] == [
        "tokenizer.json: 1 tokens only the first has: 'w9'",
        "tokenizer.json: 1 tokens only the second has: 'new'",
        "tokenizer.json: 2 tokens with another id: 'w7', 'w8'",
        "tokenizer.json#/model/unk_token: differs: w1 → w2",
    ]


MANIFEST_CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "producer": (
        lambda m: m["producer"].update(version="9.9.9"),
        "producer",
        "/producer/version: differs: 0.1.0 → 9.9.9",
    ),
    "model": (lambda m: m["model"].update(id="other"), "model", "/model/id: differs: tiny → other"),
    "inputs": (
        lambda m: m["model"]["inputs"][0].update(length=5),
        "model",
        "/model/inputs/",
    ),
    "decision": (
        lambda m: m["layout_decision"].update(requested="auto", reason="fits", override=False),
        "decision",
        "/layout_decision/reason: differs: requested_split_override → fits",
    ),
    "state": (
        lambda m: m["states"][1].update(initial_value=1.0),
        "states",
        "/states/ssm_state_0/initial_value: differs: 0.0 → 1.0",
    ),
    "engine": (
        lambda m: m["engines"]["decode"].update(backend_version="2.0.0"),
        "engines",
        "/engines/decode/backend_version: differs: ",
    ),
    "an end token more": (
        lambda m: m["tokens"]["eos"].append({"id": 9, "sources": ["config.json"]}),
        "tokens",
        "/tokens/eos/9: only the second has it",
    ),
    "limit": (lambda m: m["limits"].update(max_position_embeddings=None), "limits", "differs: 256 → null"),
    "a key of a newer version": (lambda m: m.update(flavour="x"), "sections", "/flavour: only the second has it"),
    "a number that becomes true": (lambda m: m["limits"].update(prefill_rows=True), "limits", "differs: 16 → true"),
}


@pytest.mark.parametrize("name", MANIFEST_CHANGES)
def test_manifests_are_told_by_part_and_place(name: str, compared: Callable[[Change], Comparison]) -> None:
    change, part, words = MANIFEST_CHANGES[name]
    comparison = compared(lambda manifest, sections: change(manifest))
    assert comparison.parts == [part]
    assert any(words in str(difference) for difference in comparison.differences), comparison.differences


def test_sections_and_provenance(tiny_bundles: Bundles, tmp_path: Path) -> None:
    source = tiny_bundles["rwkv", "single"]

    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        runtime = json.loads(sections["runtime.json"])
        runtime["bos_token_id"] = 5
        sections["runtime.json"] = json.dumps(runtime).encode()
        engine = sections.pop("engine.onnx")
        weights, golden = sections.pop("weights.safetensors"), sections.pop("golden.msgpack.zst")
        sections.update({"zz.txt": b"more", "engine.onnx": engine, "weights.safetensors": weights})
        sections["golden.msgpack.zst"] = golden

    comparison = compare_bundles(source, rewritten(source, tmp_path / "x.bundle", change, {"by": "hand"}))
    assert comparison.parts == ["sections", "provenance"]
    told = [str(difference) for difference in comparison.of("sections")]
    assert told == ["runtime.json#/bos_token_id: differs: 0 → 5", "zz.txt: only the second has it"]
    assert "trailer#/provenance/by: only the second has it: nothing → hand" in map(str, comparison.differences)


def test_golden_vectors_differ_without_the_content_differing(compared: Callable[[Change], Comparison]) -> None:
    from rowpack_loaders.golden import GoldenVectors, decode_golden, encode_golden

    def change(manifest: dict[str, Any], sections: dict[str, bytes]) -> None:
        vectors = decode_golden(sections["golden.msgpack.zst"])
        sections["golden.msgpack.zst"] = encode_golden(GoldenVectors("another machine", "1", vectors.cases))

    comparison = compared(change)
    assert comparison.parts == ["self_test"]
    assert (comparison.same_content, comparison.same_file) == (True, False)


def test_single_and_split_of_one_model(tiny_bundles: Bundles) -> None:
    comparison = compare_bundles(tiny_bundles["rwkv", "split"], tiny_bundles["rwkv", "single"])
    assert comparison.parts == ["decision", "engines", "sections", "provenance"]
    assert [str(difference) for difference in comparison.of("sections")] == ["prefill.onnx: only the first has it"]


def test_an_older_bundle_can_be_compared(tmp_path: Path) -> None:
    from rowpack.bundle.migration import migrate

    old = Path(__file__).resolve().parents[2] / "schema/vectors/good/older/august-2026-qwen3_5-split.bundle"
    migrate(old, tmp_path / "new.bundle")
    comparison = compare_bundles(old, tmp_path / "new.bundle")
    assert "weights" not in comparison.parts
    assert "engine_plan: only the first has it" in map(str, comparison.of("sections"))


def test_the_command(tiny_bundles: Bundles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split, single = tiny_bundles["qwen3_5", "split"], tiny_bundles["qwen3_5", "single"]
    assert main(["diff", str(split), str(split)]) == 0
    assert capsys.readouterr().out == "the same: manifest, sections and provenance\n"
    assert main(["diff", str(split), str(single), "--most", "1"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("different: decision, engines, ")
    assert "another content digest" in text
    assert "first: split: asked for, whatever the memory" in text
    assert "second: single: asked for" in text
    assert "more (--most N, or --json)" in text
    assert main(["diff", str(split), str(single), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    # The reference runs rows one by one where there is no prefill engine, which rounds its logits otherwise.
    assert set(report["parts"]) - {"self_test"} == {"decision", "engines", "sections", "provenance"}
    assert {"part", "where", "message", "first", "second"} == set(report["differences"][0])
    assert main(["diff", str(split), str(tmp_path / "missing"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "container_not_found"
