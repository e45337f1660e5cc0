"""Whole builds: every outer layout of a checkpoint gives the same model, and what is published is right or nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from random_models import QWEN_CHECKPOINT, QWEN_NESTED, QWEN_TEXT, RWKV, RWKV_CHECKPOINT, BuildBundle, Synthesize

from rowpack import BuildRequest, build, build_stages
from rowpack.engines.backend import EngineBuild, EngineOrder
from rowpack.engines.options import EngineOptions
from rowpack.engines.ort import OrtBackend, OrtBuilder
from rowpack_loaders import RowpackError, load, open_bundle, validate

PROMPT = [(37 * index + 11) % 300 for index in range(70)]


def last_logits(bundle: Path, mode: str = "auto") -> np.ndarray[Any, Any]:
    return load(bundle).session().prefill(PROMPT, mode=mode).copy()


def copy_checkpoint(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def edit_config(checkpoint: Path, **values: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("checkpoint", [QWEN_CHECKPOINT, RWKV_CHECKPOINT], ids=["qwen3_5", "rwkv"])
@pytest.mark.parametrize("layout", ["split", "single"])
def test_a_built_bundle_is_valid_and_passes_its_own_test(
    build_bundle: BuildBundle, checkpoint: Path, layout: str
) -> None:
    from rowpack_loaders.selftest import run_self_test

    path = build_bundle(checkpoint, decoder_engine_layout=layout)
    report = validate(path)
    assert (report.errors, report.warnings) == ([], [])
    with load(path) as decoder:
        self_test = run_self_test(decoder)
        assert self_test.passed
        assert len(self_test.results) == (8 if layout == "split" else 4)
    with open_bundle(path) as bundle:
        assert bundle.decoder_engine_layout == layout
        assert ("prefill.onnx" in bundle.sections) == (layout == "split")


@pytest.mark.parametrize("checkpoint", [QWEN_CHECKPOINT, RWKV_CHECKPOINT], ids=["qwen3_5", "rwkv"])
def test_two_builds_are_byte_identical(build_bundle: BuildBundle, checkpoint: Path) -> None:
    first = build_bundle(checkpoint, "first.bundle")
    second = build_bundle(checkpoint, "second.bundle")
    assert first.read_bytes() == second.read_bytes()


def test_every_outer_layout_of_qwen3_5_gives_the_same_logits(
    random_checkpoint: Synthesize, build_bundle: BuildBundle
) -> None:
    flat = random_checkpoint(QWEN_TEXT, "flat")
    nested = random_checkpoint(QWEN_NESTED, "nested", include_visual=True, include_mtp=True, shard_bytes=60_000)
    assert len(list(nested.glob("model-*.safetensors"))) > 1
    expected = last_logits(build_bundle(flat, "flat.bundle"))
    found = last_logits(build_bundle(nested, "nested.bundle"))
    # Only the names of the tensors differ; the random values depend on the name without its outer prefix.
    assert np.array_equal(found, expected)


def test_a_torch_pickle_and_safetensors_of_rwkv_give_the_same_weights(
    random_checkpoint: Synthesize, build_bundle: BuildBundle
) -> None:
    digests = []
    for weight_format in ("torch", "safetensors"):
        checkpoint = random_checkpoint(RWKV, weight_format, weight_format=weight_format)
        with open_bundle(build_bundle(checkpoint, f"{weight_format}.bundle", verify=False)) as bundle:
            sections: Any = bundle.manifest["sections"]
            digests.append(sections["weights.safetensors"]["sha256"])
    assert digests[0] == digests[1]


def test_a_config_that_promises_mtp_layers_builds_without_them(tmp_path: Path, build_bundle: BuildBundle) -> None:
    checkpoint = copy_checkpoint(QWEN_CHECKPOINT, tmp_path / "checkpoint")
    edit_config(checkpoint, mtp_num_hidden_layers=1)
    assert validate(build_bundle(checkpoint, verify=False)).valid


def test_a_tied_embedding_is_stored_once(build_bundle: BuildBundle) -> None:
    path = build_bundle(QWEN_CHECKPOINT, verify=False)
    with open_bundle(path) as bundle:
        model: Any = bundle.manifest["model"]
        weights: Any = bundle.manifest["weights"]
    assert model["parameter_count"] == 4_359_904
    assert weights["tensor_bytes"] == 4 * 4_359_904


def test_a_split_bundle_is_barely_larger_than_a_single_one(build_bundle: BuildBundle) -> None:
    sizes = [
        build_bundle(QWEN_CHECKPOINT, f"{layout}.bundle", decoder_engine_layout=layout, verify=False).stat().st_size
        for layout in ("split", "single")
    ]
    # tests/memory/test_published_graphs.py has published shapes with small weights, where the bar is meant.
    assert sizes[0] <= 1.02 * sizes[1]


def test_the_onnx_sections_hold_no_weights_and_refer_to_the_weight_section(build_bundle: BuildBundle) -> None:
    path = build_bundle(RWKV_CHECKPOINT, decoder_engine_layout="split", verify=False)
    with open_bundle(path) as bundle:
        for section in ("engine.onnx", "prefill.onnx"):
            model = onnx.load_model_from_string(bundle.read_section(section))
            external = [
                tensor for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL
            ]
            inline = [tensor for tensor in model.graph.initializer if tensor not in external]
            locations = {
                entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"
            }
            assert locations == {"weights.safetensors"}
            assert all(tensor.name.startswith("constants.") for tensor in inline)


def test_fp16_halves_the_file_and_keeps_states_in_float32(build_bundle: BuildBundle) -> None:
    wide = build_bundle(QWEN_CHECKPOINT, "wide.bundle", verify=False)
    narrow = build_bundle(QWEN_CHECKPOINT, "narrow.bundle", precision="fp16")
    assert narrow.stat().st_size < 0.56 * wide.stat().st_size
    with open_bundle(narrow) as bundle:
        dtypes = {state.role: state.dtype for state in bundle.states}
    assert dtypes == {"conv": "float32", "recurrent": "float32", "key": "float16", "value": "float16"}


@pytest.mark.parametrize("prefill_rows", [1, 5, 32])
def test_fewer_prefill_rows(build_bundle: BuildBundle, prefill_rows: int) -> None:
    path = build_bundle(QWEN_CHECKPOINT, prefill_rows=prefill_rows, decoder_engine_layout="split", verify=False)
    found, expected = last_logits(path), last_logits(path, "token-loop")
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_the_manifest_tells_what_the_decision_used(build_bundle: BuildBundle) -> None:
    path = build_bundle(QWEN_CHECKPOINT, target_memory_bytes=10**7, verify=False)
    with open_bundle(path) as bundle:
        decision: Any = bundle.manifest["layout_decision"]
    assert decision["layout"] == "single"
    assert decision["reason"] == "does_not_fit"
    assert (decision["capacity_bytes"], decision["capacity_source"]) == (10**7, "target_memory")
    assert decision["weight_bytes"] == 4 * 4_359_904


class _WrongEngines(OrtBackend):
    """A backend whose engines add a little to the logits: what a faulty compiler would give."""

    def __init__(self, role: str) -> None:
        self._role = role

    def open_builder(self, options: EngineOptions, quantization: str | None = None) -> OrtBuilder:
        return _WrongBuilder(self._role)


class _WrongBuilder(OrtBuilder):
    def __init__(self, role: str) -> None:
        self._role = role

    def build_engine(self, order: EngineOrder, *arguments: Any) -> EngineBuild:
        if order.role == self._role:
            # A residual sum whose second addend is taken twice.
            node = next(node for node in order.model.graph.node if node.name.endswith("mlp_residual"))
            node.input[0] = node.input[1]
        return super().build_engine(order, *arguments)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_wrong_engine_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setattr(build_stages, "find_backend", lambda name: _WrongEngines(role))
    output = tmp_path / "out" / "wrong.bundle"
    output.parent.mkdir()
    output.write_bytes(b"the bundle of yesterday")
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(QWEN_CHECKPOINT, output, decoder_engine_layout="split"))
    assert caught.value.code == "verification_failed"
    assert any("token-loop" in str(p) if role == "decode" else "chunked" in str(p) for p in caught.value.problems)
    assert output.read_bytes() == b"the bundle of yesterday"
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"precision": "bf16"}, "precision_unsupported"),
        ({"precision": "fp64"}, "precision_unsupported"),
        ({"backend": "abacus"}, "backend_unknown"),
        ({"max_sequence_length": 4097}, "max_sequence_length_range"),
        ({"output": Path("no/such/folder/out.bundle")}, "output_folder_missing"),
        ({"checkpoint": Path("no/such/checkpoint")}, "checkpoint_not_found"),
    ],
)
def test_bad_requests(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    request = replace(BuildRequest(QWEN_CHECKPOINT, tmp_path / "out.bundle"), **changes)
    with pytest.raises(RowpackError) as caught:
        build(request)
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prefill_rows": 0}, "prefill_rows_range"),
        ({"prefill_rows": 513}, "prefill_rows_range"),
        ({"prefill_rows": 4097}, "prefill_rows_range"),
        ({"max_sequence_length": 0}, "max_sequence_length_range"),
        ({"decoder_engine_layout": "both"}, "layout_unknown"),
    ],
)
def test_requests_that_cannot_be_made(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        BuildRequest(QWEN_CHECKPOINT, Path("out.bundle"), **changes)
    assert caught.value.code == code


def test_missing_misshapen_and_extra_tensors_are_reported_together(
    random_checkpoint: Synthesize, tmp_path: Path
) -> None:
    checkpoint = random_checkpoint(QWEN_TEXT)
    edit_config(checkpoint, intermediate_size=97, num_hidden_layers=5, layer_types=["linear_attention"] * 5)
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(checkpoint, tmp_path / "out.bundle"))
    assert {problem.code for problem in caught.value.problems} >= {"tensor_missing", "tensor_shape"}
    assert len(caught.value.problems) > 10
    edit_config(checkpoint, intermediate_size=96, num_hidden_layers=3, layer_types=["linear_attention"] * 3)
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(checkpoint, tmp_path / "out.bundle"))
    codes = [problem.code for problem in caught.value.problems]
    assert codes[0] == "config_tensors_disagree"
    assert set(codes[1:]) == {"tensor_unexpected"}


def test_the_exported_graphs_run_as_they_are(tmp_path: Path) -> None:
    import onnxruntime

    from rowpack.build_stages import export_onnx

    paths = export_onnx(BuildRequest(QWEN_CHECKPOINT, tmp_path), tmp_path / "onnx")
    assert {path.name for path in paths} == {"exported.onnx", "decode.onnx", "prefill.onnx", "weights.safetensors"}
    logits = []
    for name in ("exported.onnx", "prefill.onnx"):
        onnx.checker.check_model(str(tmp_path / "onnx" / name), full_check=True)
        session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / name), providers=["CPUExecutionProvider"])
        feeds = {"token_id": np.arange(3, 8, dtype=np.int32)}
        sizes = {"rows": 5, "cache_rows": 0, "cache_rows+rows": 5}
        for tensor in session.get_inputs():
            if tensor.name not in feeds:
                kind = np.int32 if tensor.type == "tensor(int32)" else np.float32
                feeds[tensor.name] = np.zeros([sizes.get(extent, extent) for extent in tensor.shape], kind)
        feeds["position_id"] = np.arange(5, dtype=np.int32)
        feeds["attention_mask"] = np.triu(np.full((5, 5), -1e4, np.float32), 1)
        logits.append(session.run(["logits"], feeds)[0])
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4 * np.abs(logits[0]).max()
