"""How many nodes a mixer and a layer may have, and which: an operator too many is seen before it costs time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mixer_inputs import Heads
from mixers import delta_rule_chunk_graph, own_nodes, wkv_chunk_graph
from model_engines import ModelEngines
from model_facts import GRAPHS, models, operators_by_layer, scope_of

Engines = Callable[..., ModelEngines]

DELTA_RULE_AND_CONVOLUTION_BUDGET = 150
WKV_BUDGET = 60
HYBRID_LAYER_BUDGET = 200

HISTOGRAMS: dict[str, Any] = json.loads(Path(__file__).with_name("operator_histograms.json").read_text("utf-8"))
"""family → graph → kind of layer → operator → count, of a float32 build."""

ONE_ROW_LATER: dict[str, dict[str, Counter[str]]] = {
    "qwen3_5": {
        "exported": Counter({"Gather": 2}),
        "decode": Counter(),
        "prefill": Counter({"Gather": 2, "Gemm": 3, "MatMul": -3, "Transpose": -4}),
    },
    "rwkv": {
        "exported": Counter({"Gather": 3}),
        "decode": Counter(),
        "prefill": Counter({"Gather": 3, "Gemm": 3, "MatMul": -3, "Transpose": -4}),
    },
}
"""What the last layer has beside the others of its kind: its last row goes on alone behind the mixer."""


def mixer_nodes(engines: ModelEngines, graph: str, *mixers: str) -> dict[str, int]:
    """Return the nodes below ``layers.<n>.….<mixer>.`` in each layer."""
    counts: dict[str, int] = {}
    for node in models(engines)[graph].graph.node:
        if any(f".{mixer}." in node.name for mixer in mixers):
            scope = scope_of(node.name)
            counts[scope] = counts.get(scope, 0) + 1
    return counts


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_delta_rule_with_its_convolution(shipped_engines: Engines, precision: str) -> None:
    counts = mixer_nodes(shipped_engines("qwen3_5", precision), "prefill", "delta_rule", "conv")
    assert len(counts) == 6
    assert max(counts.values()) <= DELTA_RULE_AND_CONVOLUTION_BUDGET


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_wkv(shipped_engines: Engines, precision: str) -> None:
    counts = mixer_nodes(shipped_engines("rwkv", precision), "prefill", "wkv")
    assert len(counts) == 6
    assert max(counts.values()) <= WKV_BUDGET


@pytest.mark.parametrize("prefill_rows", [1, 2, 16, 32, 64, 128, 256, 512])
def test_the_budgets_hold_for_engines_of_other_row_counts(prefill_rows: int, free_rows: bool) -> None:
    convolution = 22
    for heads in (Heads(2, 1, 32), Heads(1, 3, 32)):
        nodes = own_nodes(delta_rule_chunk_graph(heads, prefill_rows, free_rows=free_rows).model)
        assert nodes + convolution <= DELTA_RULE_AND_CONVOLUTION_BUDGET
    assert own_nodes(wkv_chunk_graph(48, prefill_rows, free_rows=free_rows).model) <= WKV_BUDGET


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_what_counts_rows_is_there_once(shipped_engines: Engines, family: str) -> None:
    """Counting and cutting tables takes a step of a few microseconds a node, whatever the model's size."""
    nodes = [node.name for node in shipped_engines(family).prefill_model.graph.node]
    assert 1 < sum(name.startswith("chunk_rows.") for name in nodes) <= 20


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_whole_hybrid_layer(shipped_engines: Engines, precision: str) -> None:
    counts = operators_by_layer(shipped_engines("qwen3_5", precision).prefill_model)
    layers = {scope: count.total() for scope, count in counts.items() if scope}
    assert len(layers) == 8
    assert max(layers.values()) < HYBRID_LAYER_BUDGET


@pytest.mark.parametrize("graph", GRAPHS)
def test_operators_of_qwen3_5(shipped_engines: Engines, graph: str) -> None:
    engines = shipped_engines("qwen3_5")
    kinds = engines.description.hyper_parameters["layer_types"]
    for scope, found in operators_by_layer(models(engines)[graph]).items():
        if scope == f"layers.{len(kinds) - 1}":
            found.subtract(ONE_ROW_LATER["qwen3_5"][graph])
        kind = kinds[int(scope.removeprefix("layers."))] if scope else "around the layers"
        assert dict(+found) == HISTOGRAMS["qwen3_5"][graph][kind], scope


@pytest.mark.parametrize("graph", GRAPHS)
def test_operators_of_rwkv(shipped_engines: Engines, graph: str) -> None:
    for scope, found in operators_by_layer(models(shipped_engines("rwkv"))[graph]).items():
        if scope == "layers.5":
            found["Mul"] -= 1  # after every sixth block the residual stream is halved
            found.subtract(ONE_ROW_LATER["rwkv"][graph])
        kind = "block" if scope else "around the layers"
        assert dict(+found) == HISTOGRAMS["rwkv"][graph][kind], scope


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_engines_have_plain_operators_only(shipped_engines: Engines, family: str, precision: str) -> None:
    engines = shipped_engines(family, precision)
    for model in (engines.decode_model, engines.prefill_model):
        assert not model.functions
        assert {node.domain for node in model.graph.node} == {""}
        assert not {node.op_type for node in model.graph.node} & {"Loop", "Scan", "If"}
        assert not [node.name for node in model.graph.node for entry in node.attribute if entry.HasField("g")]


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_float32_build_has_no_casts_of_activations(shipped_engines: Engines, family: str) -> None:
    """The positions and the row count are integers; nothing else needs another type."""
    engines = shipped_engines(family)
    for graph in GRAPHS:
        casts = [node.name for node in models(engines)[graph].graph.node if node.op_type == "Cast"]
        assert all(name == "rotary.position" or name.endswith(".end_float") for name in casts), casts
