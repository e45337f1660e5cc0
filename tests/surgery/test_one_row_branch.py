"""A mixer whose chunk pads rows, with a branch for one row: both branches compute what they compute alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mixer_inputs import Heads, delta_rule_inputs, wkv_inputs
from mixers import (
    delta_rule_chunk_graph,
    delta_rule_row_graph,
    delta_rule_tensors,
    own_nodes,
    run_delta_rule,
    run_wkv,
    wkv_chunk_graph,
    wkv_row_graph,
    wkv_tensors,
)
from subgraph import Subgraph, cpu_session, lowered

from rowpack.checkpoint import open_checkpoint
from rowpack.comparison.graphs import read_graph
from rowpack.export import export_graph
from rowpack.graph.constants import constant_bytes
from rowpack.graph.custom_operators import custom_operators
from rowpack.graph.emitter import Emitter
from rowpack.graph.live_activations import live_activation_bytes
from rowpack.graph.model import export_model, new_graph, serialize
from rowpack.model_preparation import BuildRequest, prepare_model
from rowpack.onnx_ops import WKV4
from rowpack.surgery import GraphForm, pads_rows, prefill_model
from rowpack.surgery.delta_rule_chunk import DeltaRuleChunk
from rowpack.surgery.delta_rule_row import delta_rule_row
from rowpack.surgery.mixer_replacement import MixerReplacement
from rowpack.surgery.one_row_branch import BRANCH, OneRowBranch
from rowpack.surgery.surgery_pass import check_plain, run_passes
from rowpack.surgery.wkv_chunk import WkvChunk
from rowpack.surgery.wkv_row import wkv_row
from rowpack_loaders import RowpackError
from rowpack_loaders.onnx_interface import read_onnx_interface

HEADS = Heads(2, 2, 16)
CHANNELS = 48
BRANCHED = GraphForm(one_row_branch=True)


def wkv_branch(prefill_rows: int = 64) -> Subgraph:
    return lowered(OneRowBranch(wkv_row, WkvChunk(prefill_rows)), *wkv_tensors(CHANNELS, "rows"))


def inner_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g


@pytest.mark.parametrize("prefill_rows", [2, 64])
def test_each_branch_is_the_lowering_alone(prefill_rows: int) -> None:
    branch = wkv_branch(prefill_rows)
    several = range(2, prefill_rows + 1)
    for rows in (1, 2, several[-1]):
        inputs = wkv_inputs("random", rows, CHANNELS)
        alone = wkv_row_graph(CHANNELS) if rows == 1 else wkv_chunk_graph(CHANNELS, prefill_rows)
        found, state = run_wkv(branch, inputs, [rows])
        expected, expected_state = run_wkv(alone, inputs, [rows])
        assert np.array_equal(found, expected)
        assert all(np.array_equal(x, y) for x, y in zip(state, expected_state, strict=True))


def test_the_delta_rule_takes_one_row_by_its_step() -> None:
    branch = lowered(OneRowBranch(delta_rule_row, DeltaRuleChunk(64)), *delta_rule_tensors(HEADS, "rows"))
    inputs = delta_rule_inputs("random", 66, HEADS)
    found, state = run_delta_rule(branch, inputs, [64, 1, 1])
    chunk, _ = run_delta_rule(delta_rule_chunk_graph(HEADS, 64), inputs, [64, 1, 1])
    assert np.array_equal(found[:64], chunk[:64])
    steps, expected_state = run_delta_rule(delta_rule_row_graph(HEADS), inputs, [1] * 66)
    assert np.abs(found - steps).max() <= 1e-5 * np.abs(steps).max()
    assert np.abs(state - expected_state).max() <= 1e-5 * np.abs(expected_state).max()


def test_constants_are_the_main_graphs_and_there_once() -> None:
    model, plain = wkv_branch().model, wkv_chunk_graph(CHANNELS, 64).model
    inner = list(inner_graphs(model.graph))
    assert len(inner) == 2
    assert all(not graph.initializer and not graph.value_info for graph in inner)
    names = [tensor.name for tensor in model.graph.initializer]
    assert len(names) == len(set(names))
    row_constants = 256
    assert constant_bytes(model).inline <= constant_bytes(plain).inline + row_constants


def test_an_input_that_is_handed_on_is_given_out_by_the_branch() -> None:
    def hand_on(emitter: Emitter, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
        return [inputs[1], inputs[0]]

    def swap(emitter: Emitter, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
        return [emitter.op("Neg", [inputs[0]], "a"), emitter.op("Neg", [inputs[1]], "b")]

    shapes: Any = {"x": ("float32", ("rows", 2)), "y": ("float32", ("rows", 2))}
    graph = lowered(OneRowBranch(hand_on, swap), shapes, {"a": ("rows", 2), "b": ("rows", 2)})
    x, y = np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32)
    assert [float(value.flat[0]) for value in graph(x=x, y=y)] == [2.0, 1.0]
    assert [float(value.flat[0]) for value in graph(x=x.repeat(2, 0), y=y.repeat(2, 0))] == [-1.0, -2.0]


def custom(emitter: Emitter, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """Emit an operator that is not ONNX's own."""
    return [emitter.op("BiasGelu", list(inputs), "gelu", domain="com.microsoft")]


def test_checks_look_into_branches() -> None:
    emitter = Emitter(new_graph("toy"))
    inputs = [emitter.input("x", "float32", ["rows", 2]), emitter.input("bias", "float32", [2])]
    (result,) = OneRowBranch(custom, custom)(emitter, inputs, {})
    emitter.output(result, "y", "float32", ["rows", 2])
    for allowed, found in (
        ((), "1 × ai.onnx.If, 2 × com.microsoft.BiasGelu"),
        ((BRANCH,), "2 × com.microsoft.BiasGelu"),
    ):
        with pytest.raises(RowpackError) as caught:
            check_plain(emitter.graph, allowed)
        assert caught.value.problem.found == found
    check_plain(emitter.graph, (BRANCH, "com.microsoft.BiasGelu"))
    model = export_model(emitter.graph)
    assert custom_operators(model) == ("com.microsoft.BiasGelu",)
    assert read_onnx_interface(serialize(model), where="toy").custom_operators == ("com.microsoft.BiasGelu",)
    cpu_session(serialize(model))


def exported(folder: Path, quantization: str | None) -> onnx.ModelProto:
    request = BuildRequest(folder, Path("unused.bundle"), quantization=quantization)
    with open_checkpoint(folder, allow_missing_tokenizer=True) as checkpoint:
        prepared = prepare_model(checkpoint, request)
    return export_graph(prepared.model, prepared.plan, "fp32")


def test_a_node_budget_counts_the_longer_branch(rwkv_checkpoint: Path) -> None:
    from rowpack.graph.model import import_graph

    graph = import_graph(exported(rwkv_checkpoint, None))
    branch = MixerReplacement(WKV4, OneRowBranch(wkv_row, WkvChunk(64)), 10)
    with pytest.raises(RowpackError) as caught:
        run_passes(graph, [branch])
    chunk_nodes = own_nodes(wkv_chunk_graph(CHANNELS, 64).model)
    assert caught.value.problem.found == f"{chunk_nodes + 3} nodes"


@pytest.mark.parametrize("quantization", ["int4", None])
@pytest.mark.parametrize("family", ["qwen", "rwkv"])
def test_a_whole_prefill_graph(request: pytest.FixtureRequest, family: str, quantization: str | None) -> None:
    graph = exported(request.getfixturevalue(f"{family}_checkpoint"), quantization)
    assert pads_rows(graph, 64)
    assert not pads_rows(graph, 64, BRANCHED)
    plain, branched = prefill_model(graph, 64), prefill_model(graph, 64, BRANCHED)
    assert {node.op_type for node in branched.graph.node} - {node.op_type for node in plain.graph.node} <= {
        "If",
        "Equal",
    }
    # Six layers with a recurrence; of the hybrid model two layers with attention as well.
    assert sum(node.op_type == "If" for node in branched.graph.node) == {"qwen": 8, "rwkv": 6}[family]
    assert sum(node.op_type == "Equal" for node in branched.graph.node) == 1
    assert all(not inner.initializer for inner in inner_graphs(branched.graph))
    assert constant_bytes(branched).external == constant_bytes(plain).external
    assert custom_operators(branched) == custom_operators(plain)
    sizes = {"rows": 64, "cache_rows": 64}
    live = [live_activation_bytes(model, sizes) for model in (plain, branched)]
    # What a branch reads is kept until it ends; of as many nodes in a row, some results end in between.
    assert 0.85 <= live[1] / live[0] <= 1.2
    # A comparison of bundles tells of nodes inside the branches too.
    told = set(read_graph(serialize(branched), where="prefill.onnx").nodes)
    assert {node.name for inner in inner_graphs(branched.graph) for node in inner.node} <= told
