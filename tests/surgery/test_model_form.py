"""The form of the three ONNX models: inputs and outputs, names, weights, version numbers, bytes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable

import onnx
import pytest
from model_engines import ModelEngines
from model_facts import GRAPHS, Signature, external_facts, models, scope_of, signature

from rowpack.engines.openvino import OpenVinoBackend
from rowpack.export import export_graph
from rowpack.graph.dtypes import work_dtype
from rowpack.graph.model import serialize
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE, TOKEN_SHIFT, WKV4
from rowpack.surgery import decode_model, prefill_model

Engines = Callable[..., ModelEngines]

PRECISIONS = ("fp32", "fp16", "bf16")
FAMILIES = ("qwen3_5", "rwkv")

FUNCTIONS = {"qwen3_5": {CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE}, "rwkv": {TOKEN_SHIFT, WKV4}}

OF_THE_LAST_ROW = {
    "qwen3_5": [
        "layers.7.attention.o_proj",
        "layers.7.mlp.gate_up_proj",
        "layers.7.mlp.down_proj",
        "lm_head",
    ],
    "rwkv": [*(f"layers.5.channel_mixing.{word}" for word in ("key", "value", "receptance")), "head"],
}
"""The products whose rows nothing but the logits is made from."""

AROUND_THE_LAYERS = re.compile(
    r"(embed_tokens|embeddings|chunk_rows\.\w+|rotary\.\w+|pre_norm\w*|final_norm[\w.]*|lm_head|head|logits_float32)"
)


def qwen3_5_signature(work: str, rows: int | str) -> tuple[Signature, Signature]:
    """Return inputs and outputs of the shipped shape: 8 value heads of 32 by 32, 512 channels, 2 heads of 64."""
    inputs: Signature = {
        "token_id": ("int32", [rows]),
        "position_id": ("int32", [rows]),
        "attention_mask": ("float32", [rows, f"cache_rows+{rows}"]),
    }
    outputs: Signature = {"logits": ("float32", [1, 2048])}
    for layer in range(6):
        inputs[f"conv_state_{layer}"] = outputs[f"present_conv_{layer}"] = ("float32", [512, 4])
        inputs[f"ssm_state_{layer}"] = outputs[f"present_ssm_{layer}"] = ("float32", [8, 32, 32])
    for layer in range(2):
        for letter in "kv":
            inputs[f"cache_{letter}_{layer}"] = (work, ["cache_rows", 128])
            outputs[f"present_{letter}_{layer}"] = (work, [rows, 128])
    return inputs, outputs


def rwkv_signature(rows: int | str) -> tuple[Signature, Signature]:
    """Return inputs and outputs of the shipped shape: six blocks of 192 channels, all states float32."""
    inputs: Signature = {"token_id": ("int32", [rows])}
    outputs: Signature = {"logits": ("float32", [1, 2048])}
    for block in range(6):
        for word in ("attn", "ff", "num", "den", "max"):
            inputs[f"{word}_state_{block}"] = outputs[f"present_{word}_{block}"] = ("float32", [1, 192])
    return inputs, outputs


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_and_outputs(shipped_engines: Engines, family: str, precision: str, graph: str) -> None:
    engines = shipped_engines(family, precision)
    rows: int | str = 1 if graph == "decode" else "rows"
    expected = qwen3_5_signature(work_dtype(precision), rows) if family == "qwen3_5" else rwkv_signature(rows)
    model = models(engines)[graph]
    assert (signature(model.graph.input), signature(model.graph.output)) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_the_table_are_the_engines_tensors(shipped_engines: Engines, family: str, precision: str) -> None:
    """What the manifest says of a state is what the engine has; for a cache the first extent is its capacity."""
    engines = shipped_engines(family, precision)
    for model in models(engines).values():
        inputs, outputs = signature(model.graph.input), signature(model.graph.output)
        states = engines.description.states
        assert {state.output_name for state in states} == set(outputs) - {"logits"}
        assert {state.input_name for state in states} == set(inputs) - {"token_id", "position_id", "attention_mask"}
        for state in states:
            for dtype, shape in (inputs[state.input_name], outputs[state.output_name]):
                fixed = slice(1, None) if state.update == "append_rows" else slice(None)
                assert (dtype, shape[fixed]) == (state.dtype, list(state.shape)[fixed])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_models_pass_the_full_check(shipped_engines: Engines, family: str, precision: str) -> None:
    """Including strict shape and type inference; weights are looked for beside the model."""
    engines = shipped_engines(family, precision)
    for graph, model in models(engines).items():
        path = engines.folder / f"{graph}.onnx"
        path.write_bytes(serialize(model))
        onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_versions_and_functions(shipped_engines: Engines, family: str, graph: str) -> None:
    model = models(shipped_engines(family))[graph]
    assert model.ir_version == 10
    domains = {entry.domain: entry.version for entry in model.opset_import}
    assert domains == ({"": 20, "rowpack": 1} if graph == "exported" else {"": 20})
    assert {function.name for function in model.functions} == (FUNCTIONS[family] if graph == "exported" else set())
    assert model.graph.name == f"{family}_{graph}"
    assert (model.producer_name, model.producer_version) == ("rowpack", "")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_names(shipped_engines: Engines, family: str, precision: str, graph: str) -> None:
    """Every node has a name of its own that says where it belongs; tensors are named after their nodes."""
    model = models(shipped_engines(family, precision))[graph]
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    tensors = [name for node in model.graph.node for name in node.output]
    assert len(set(tensors)) == len(tensors)
    outputs = {output.name for output in model.graph.output}
    for node in model.graph.node:
        assert scope_of(node.name) or AROUND_THE_LAYERS.fullmatch(node.name), node.name
        for name in node.output:
            assert name in outputs or name.startswith(node.name), name
        for name in node.input:
            if scope_of(name):
                # A weight or value of a layer is used in that layer, or is its residual for the next.
                residual = name.endswith(("mlp_residual", "channel_residual", "halved"))
                assert residual or scope_of(name) == scope_of(node.name), (name, node.name)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_lie_outside(shipped_engines: Engines, family: str, precision: str, graph: str) -> None:
    """Each weight once, at the plan's place; inside the model are only the graph's own constants."""
    engines = shipped_engines(family, precision)
    stored = {tensor.name: tensor for tensor in models(engines)[graph].graph.initializer}
    assert len(stored) == len(models(engines)[graph].graph.initializer)
    external = {name for name, tensor in stored.items() if tensor.external_data}
    assert external == {placed.spec.name for placed in engines.plan.tensors}
    assert all(name.startswith("constants.") for name in set(stored) - external)
    for placed in engines.plan.tensors:
        assert external_facts(stored[placed.spec.name]) == {
            "location": "weights.safetensors",
            "offset": str(placed.offset_bytes),
            "length": str(placed.byte_count),
        }
        assert tuple(stored[placed.spec.name].dims) == placed.spec.shape
        assert not stored[placed.spec.name].raw_data


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_tied_embedding_is_one_tensor(shipped_engines: Engines, graph: str) -> None:
    model = models(shipped_engines("qwen3_5"))[graph]
    large = [tensor.name for tensor in model.graph.initializer if 2048 in tensor.dims]
    assert large == ["embed_tokens.weight"]
    users = [node.op_type for node in model.graph.node if "embed_tokens.weight" in node.input]
    assert users == ["Gather", "Gemm"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_exports_give_the_same_bytes(shipped_engines: Engines, family: str, precision: str) -> None:
    engines = shipped_engines(family, precision)
    exported = export_graph(engines.description, engines.plan, precision)
    assert serialize(exported) == serialize(engines.exported_model)
    assert serialize(decode_model(exported)) == serialize(engines.decode_model)
    assert serialize(prefill_model(exported, 64)) == serialize(engines.prefill_model)
    assert serialize(exported) == serialize(engines.exported_model), "surgery leaves the exported model alone"


def test_hash_seeds_do_not_reach_the_bytes(shipped_engines: Engines) -> None:
    """Sets of names are iterated in another order in each process; models must not be."""
    engines = shipped_engines("rwkv")
    program = (
        "import sys, hashlib; from pathlib import Path; from model_engines import ModelEngines\n"
        "engines = ModelEngines(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(hashlib.sha256(engines.prefill_model.SerializeToString(deterministic=True)).hexdigest())"
    )
    found = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program, str(engines.checkpoint), str(engines.folder)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(run.stdout.strip())
    assert found == {hashlib.sha256(serialize(engines.prefill_model)).hexdigest()}


def matrices_of(engines: ModelEngines) -> set[str]:
    """Return the names of the weights that rows are multiplied with."""
    matrices = {spec.name for spec in engines.description.weights if len(spec.shape) == 2 and min(spec.shape) > 4}
    return matrices - {"embeddings.weight"}


def products(engines: ModelEngines, model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Return operator and weight's position of each product with one of them."""
    matrices = matrices_of(engines)
    return {
        node.name: (node.op_type, position)
        for node in model.graph.node
        for position, name in enumerate(node.input)
        if name in matrices and node.op_type != "Gather"
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_projections_have_the_form_that_reads_a_mapped_weight_fastest(shipped_engines: Engines, family: str) -> None:
    """One row: Gemm with transB. Many rows: the weight as the left operand. Never a transposed copy."""
    engines = shipped_engines(family)
    decode, prefill = products(engines, engines.decode_model), products(engines, engines.prefill_model)
    assert len(decode) == len(prefill) == len(matrices_of(engines))
    assert set(decode.values()) == {("Gemm", 1)}
    of_one_row = {prefill.pop(name) for name in OF_THE_LAST_ROW[family]}
    assert of_one_row == {("Gemm", 1)}, "only the last row goes on behind the last mixer"
    assert set(prefill.values()) == {("MatMul", 0)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_openvino_packs_no_weight(shipped_engines: Engines, family: str, precision: str) -> None:
    engines = shipped_engines(family, precision)
    form = OpenVinoBackend().graph_form(512, precision)
    for model in (decode_model(engines.exported_model, form), prefill_model(engines.exported_model, 64, form)):
        found = products(engines, model)
        assert len(found) == len(matrices_of(engines))
        assert set(found.values()) == {("MatMul", 0)}
