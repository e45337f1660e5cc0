"""Norms, activations, gates and rotary positions that a fused lowering finds again in the graphs of the models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from model_engines import ModelEngines
from oracles import relative_error
from subgraph import cpu_session

from rowpack.graph.emitter import Emitter
from rowpack.graph.model import export_model, import_graph, new_graph, opset_of
from rowpack.surgery import decode_model, prefill_model
from rowpack.surgery.fused_operators import FUSED_OPERATORS, PATTERNS, FusedOperator
from rowpack.surgery.graph_form import FusedChoice, GraphForm
from rowpack.surgery.linear_attention_gate import DECAY_GATES
from rowpack.surgery.pattern import Pattern, PatternReplacement
from rowpack.surgery.reshape_chains import JoinReshapes
from rowpack.surgery.residual_norm import RESIDUAL_NORM
from rowpack.surgery.root_mean_square_norm import RMS_NORM, UNIT_NORM
from rowpack.surgery.rotary_embedding import ROTARY
from rowpack.surgery.silu import SILU, quick_gelu
from rowpack.surgery.softplus import SOFTPLUS, softplus
from rowpack.surgery.surgery_pass import run_passes

Engines = Callable[..., ModelEngines]

DELTANET_LAYERS, ATTENTION_LAYERS = 6, 2
LAYERS = DELTANET_LAYERS + ATTENTION_LAYERS

IN_THE_EXPORTED_GRAPH = {
    RESIDUAL_NORM: 2 * LAYERS,
    # Residual norms, the first norm, one a head of each DeltaNet layer, two of each attention layer.
    RMS_NORM: 2 * LAYERS + 1 + DELTANET_LAYERS + 2 * ATTENTION_LAYERS,
    UNIT_NORM: DELTANET_LAYERS,
    SILU: LAYERS + DELTANET_LAYERS,
    DECAY_GATES: DELTANET_LAYERS,
    SOFTPLUS: DELTANET_LAYERS,
    ROTARY: 2 * ATTENTION_LAYERS,
}


def by_name(pattern: Pattern) -> str:
    return pattern.name


@pytest.mark.parametrize("pattern", PATTERNS, ids=by_name)
def test_every_place_in_the_hybrid_model_is_found(pattern: Pattern, shipped_engines: Engines) -> None:
    exported = import_graph(shipped_engines("qwen3_5").exported_model)
    assert len(pattern.find(exported)) == IN_THE_EXPORTED_GRAPH[pattern]


@pytest.mark.parametrize("pattern", PATTERNS, ids=by_name)
def test_the_recurrent_model_has_none(pattern: Pattern, shipped_engines: Engines) -> None:
    assert pattern.find(import_graph(shipped_engines("rwkv").exported_model)) == []


def test_half_precision_activations_stay(shipped_engines: Engines) -> None:
    """The kernel has float32 only: that of the gated norm is float32 in every precision, that of the MLP is not."""
    found = SILU.find(import_graph(shipped_engines("qwen3_5", "fp16").exported_model))
    assert len(found) == DELTANET_LAYERS


@pytest.mark.parametrize("operator", FUSED_OPERATORS, ids=lambda operator: operator.replaced)
def test_each_operator_alone_leaves_the_model_what_it_is(operator: FusedOperator, shipped_engines: Engines) -> None:
    engines = shipped_engines("qwen3_5")
    form = GraphForm(fused=FusedChoice((operator.name,), (operator.name,)))
    for rows, model, plain in (
        (1, decode_model(engines.exported_model, form), engines.decode),
        (5, prefill_model(engines.exported_model, 64, form), engines.prefill),
    ):
        assert operator.name.rpartition(".")[2] in {node.op_type for node in model.graph.node}
        feeds = inputs_of(plain, rows)
        found, expected = engines.session(model).run(None, feeds), plain.run(None, feeds)
        for one, other in zip(found, expected, strict=True):
            assert relative_error(np.asarray(one), np.asarray(other)) <= 2e-5


def inputs_of(session: Any, rows: int) -> dict[str, Any]:
    """Return inputs for ``rows`` rows behind 7 cached ones."""
    rng = np.random.default_rng(5)
    sizes = {"rows": rows, "cache_rows": 7, "cache_rows+rows": 7 + rows, "cache_rows+1": 8}
    feeds = {}
    for tensor in session.get_inputs():
        shape = [extent if isinstance(extent, int) else sizes[extent] for extent in tensor.shape]
        if tensor.type == "tensor(int32)":
            feeds[tensor.name] = np.arange(7, 7 + rows, dtype=np.int32)
        elif "mask" in tensor.name:
            feeds[tensor.name] = np.triu(np.full(shape, -1e4, np.float32), 8)
        else:
            feeds[tensor.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def test_all_together_need_a_later_opset_and_say_so(shipped_engines: Engines) -> None:
    engines = shipped_engines("qwen3_5")
    names = tuple(operator.name for operator in FUSED_OPERATORS)
    model = decode_model(engines.exported_model, GraphForm(fused=FusedChoice(names, names)))
    assert (opset_of(model), model.ir_version) == (23, 11)
    assert opset_of(engines.decode_model) == 20
    counts = Counter(node.op_type for node in model.graph.node)
    assert not counts.keys() & {"Pow", "ReduceMean", "Sqrt", "Div", "Softplus", "Relu", "Abs", "Neg"}
    assert counts["RMSNormalization"] == 1 + DELTANET_LAYERS + 2 * ATTENTION_LAYERS + DELTANET_LAYERS
    assert counts["Sigmoid"] == ATTENTION_LAYERS, "the gates of attention are no silu"


# -- what does not match ------------------------------------------------------------------------------------------


def silu_graph(*, outer: str | None = None, gate_of: str = "x", dtype: str | None = "float32") -> Any:
    emitter = Emitter(new_graph("silu"))
    tensors = {name: emitter.input(name, "float32", ["rows", 3]) for name in ("x", "y")}
    gate = emitter.op("Sigmoid", [tensors[gate_of]], "sigmoid")
    silu = emitter.op("Mul", [tensors["x"], gate], "silu", dtype=dtype)
    emitter.output(emitter.op("Add", [silu, tensors["y"]], "sum"), "out", "float32", ["rows", 3])
    if outer == "read":
        emitter.output(emitter.op("Neg", [gate], "also"), "also", "float32", ["rows", 3])
    if outer == "given out":
        emitter.output(gate, "also", "float32", ["rows", 3])
    return emitter.graph


def test_what_others_read_is_not_taken_away() -> None:
    assert len(SILU.find(silu_graph())) == 1
    assert SILU.find(silu_graph(outer="read")) == []
    assert SILU.find(silu_graph(outer="given out")) == []


def test_a_gate_of_something_else_is_no_silu() -> None:
    assert SILU.find(silu_graph(gate_of="y")) == []
    assert SILU.find(silu_graph(dtype=None)) == []


def test_a_pass_that_leaves_a_match_is_found() -> None:
    with pytest.raises(Exception, match="matches are left"):
        PatternReplacement(SILU, quick_gelu).check_after(silu_graph())


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_of_other_parts_is_no_softplus(swapped: bool) -> None:
    emitter = Emitter(new_graph("softplus"))
    x, y = (emitter.input(name, "float32", ["rows", 3]) for name in "xy")
    tail = emitter.op("Softplus", [emitter.op("Neg", [emitter.op("Abs", [y if swapped else x], "abs")], "neg")], "tail")
    total = emitter.op("Add", [emitter.op("Relu", [x], "positive"), tail], "total")
    emitter.output(total, "out", "float32", ["rows", 3])
    graph = emitter.graph
    values = {"x": np.float32([[-200, 0, 200]]), "y": np.float32([[1, 2, 3]])}
    session = cpu_session(export_model(graph.copy()).SerializeToString())
    expected = session.run(None, values)
    run_passes(graph, [PatternReplacement(SOFTPLUS, softplus)])
    assert ("Relu" in {node.op for node in graph.nodes}) is swapped
    assert np.array_equal(
        cpu_session(export_model(graph).SerializeToString()).run(
            None, {tensor.name: values[tensor.name] for tensor in graph.inputs}
        ),
        expected,
    )


# -- reshapes -----------------------------------------------------------------------------------------------------


def reshaped(*shapes: list[int], declared: list[int | str] | None = None) -> Any:
    """Return a graph of Reshapes one after the other, the last one's result squared and given out."""
    emitter = Emitter(new_graph("reshapes"))
    tensor = emitter.input("x", "float32", declared or ["rows", 6])
    for index, shape in enumerate(shapes):
        tensor = emitter.reshape(tensor, shape, f"reshape_{index}")
    emitter.output(emitter.op("Mul", [tensor, tensor], "squared"), "out", "float32", ["a", "b", "c"][: len(shapes[-1])])
    return emitter.graph


@pytest.mark.parametrize(
    ("shapes", "left"),
    [
        ([[-1, 2, 3], [-1, 6]], 0),  # back to what it was
        ([[-1, 2, 3], [1, -1, 6]], 1),
        ([[-1, 2, 3], [3, -1], [1, -1, 3]], 1),
        ([[-1, 2, 3], [0, 6]], 2),  # the first size is the one in between
        ([[-1, 6]], 0),
        ([[6, -1]], 1),
    ],
)
def test_reshapes_are_joined(shapes: list[list[int]], left: int) -> None:
    graph = reshaped(*shapes)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = cpu_session(export_model(graph.copy()).SerializeToString()).run(None, {"x": x})
    run_passes(graph, [JoinReshapes()])
    assert sum(node.op == "Reshape" for node in graph.nodes) == left
    model = export_model(graph)
    onnx.checker.check_model(model)
    assert np.array_equal(cpu_session(model.SerializeToString()).run(None, {"x": x}), expected)


def test_a_reshape_that_is_an_output_stays() -> None:
    emitter = Emitter(new_graph("output"))
    x = emitter.input("x", "float32", ["rows", 6])
    emitter.output(emitter.reshape(x, [-1, 6], "same"), "out", "float32", ["rows", 6])
    run_passes(emitter.graph, [JoinReshapes()])
    assert [node.op for node in emitter.graph.nodes] == ["Reshape"]
