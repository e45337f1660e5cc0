"""Nodes lie in the order in which few results are alive at once, and ONNX Runtime runs them in that order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from built_graphs import QWEN

from rowpack import BuildRequest, build
from rowpack.graph.live_activations import live_activation_bytes
from rowpack.graph.model import export_model, inner_graphs, names_read
from rowpack.surgery import GraphForm, decode_model, prefill_model
from rowpack.surgery.execution_order import order_for_execution
from rowpack_loaders import load
from rowpack_loaders.runtimes import ort as ort_runtime

SIZES = {"rows": 64, "cache_rows": 64}


@pytest.fixture(params=["qwen", "rwkv"])
def model_exported(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """An exported graph of either model."""
    graph: onnx.ModelProto = request.getfixturevalue(f"{request.param}_exported")
    return graph


def by_depth(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the same graph in the order that the library's own sort gives."""
    graph = gs.import_onnx(model)
    graph.toposort()
    return export_model(graph)


def assert_results_come_before_readers(graph: onnx.GraphProto, known: set[str]) -> None:
    known = known | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        for inner in inner_graphs(node):
            assert_results_come_before_readers(inner, known)
        made_inside = {name for inner in inner_graphs(node) for each in inner.node for name in each.output}
        assert names_read(node) - made_inside <= known, node.name
        known |= set(node.output)


@pytest.mark.parametrize("branched", [False, True])
def test_no_node_comes_before_what_it_reads(model_exported: onnx.ModelProto, branched: bool) -> None:
    model = prefill_model(model_exported, 64, GraphForm(one_row_branch=branched))
    assert_results_come_before_readers(model.graph, set())


def test_fewer_results_are_alive_than_in_order_of_depth(model_exported: onnx.ModelProto) -> None:
    for model in (decode_model(model_exported), prefill_model(model_exported, 64)):
        assert live_activation_bytes(model, SIZES) < 0.9 * live_activation_bytes(by_depth(model), SIZES)


def test_next_states_are_made_before_the_next_layer_begins(qwen_exported: onnx.ModelProto) -> None:
    nodes = list(decode_model(qwen_exported).graph.node)
    places = {name: index for index, node in enumerate(nodes) for name in node.output}
    first = {layer: min(places[name] for name in places if name.startswith(f"layers.{layer}.")) for layer in (1, 2)}
    for name in ("present_conv_0", "present_ssm_0"):
        assert places[name] < first[1], name
    for name in ("present_conv_1", "present_ssm_1"):
        assert first[1] < places[name] < first[2], name
    assert max(places.values()) == places["logits"]


def chain(count: int) -> gs.Graph:
    tensors = [gs.Variable(f"t{index}", np.float32, [1]) for index in range(count + 1)]
    nodes = [gs.Node("Identity", inputs=[before], outputs=[after]) for before, after in itertools.pairwise(tensors)]
    return gs.Graph(nodes[::-1], inputs=[tensors[0]], outputs=[tensors[-1]])


def test_a_chain_longer_than_the_stack_is_deep_is_sorted() -> None:
    graph = chain(5000)
    order_for_execution(graph)
    assert [node.outputs[0].name for node in graph.nodes] == [f"t{index}" for index in range(1, 5001)]


def test_nodes_that_no_output_needs_stay() -> None:
    graph = chain(3)
    spare = gs.Node("Neg", inputs=[graph.inputs[0]], outputs=[gs.Variable("spare", np.float32, [1])])
    graph.nodes.insert(0, spare)
    order_for_execution(graph)
    assert [node.op for node in graph.nodes] == ["Identity"] * 3 + ["Neg"]


def test_the_runtime_runs_a_graph_in_its_own_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(BuildRequest(QWEN, tmp_path / "x.bundle", decoder_engine_layout="single", verify=False)).path
    create = ort_runtime.OrtRuntime._create_session
    stored: list[str] = []

    def profiled(self: Any, engine: Any, onnx_bytes: bytes, options: Any) -> Any:
        stored.extend(node.name for node in onnx.ModelProto.FromString(onnx_bytes).graph.node)
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        return create(self, engine, onnx_bytes, options)

    monkeypatch.setattr(ort_runtime.OrtRuntime, "_create_session", profiled)
    with load(path, threads=1) as decoder:
        decoder.session().step(5)
        runtime: Any = decoder.runtime
        events = json.loads(Path(runtime._engines["decode"].session.end_profiling()).read_text("utf-8"))
    suffix = "_kernel_time"
    ran = [event["name"].removesuffix(suffix) for event in events if event["name"].endswith(suffix)]
    # Operators that read nothing but sizes go first.
    ran = [name for name in ran if name in stored]
    assert len(ran) > 0.9 * len(stored)
    assert ran == [name for name in stored if name in set(ran)]
