"""Each pass refuses a graph it cannot change rightly, and notices when its change went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from subgraph import cpu_session

from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import FUNCTION_DOMAIN, export_model, new_graph
from rowpack.onnx_ops import TOKEN_SHIFT, function
from rowpack.surgery import decode_model, prefill_model
from rowpack.surgery.mixer_replacement import Lowering, MixerReplacement
from rowpack.surgery.pipelines import decode_passes, prefill_passes
from rowpack.surgery.projection_form import WeightOnTheLeft
from rowpack.surgery.row_count import FixRowCount
from rowpack.surgery.surgery_pass import check_plain, run_passes
from rowpack.surgery.token_shift import token_shift_chunk, token_shift_row
from rowpack_loaders.errors import RowpackError

HIDDEN = 4
Shape = Sequence[int | str]


def shift_graph(shape: Shape | None = ("rows", HIDDEN), calls: int = 1) -> gs.Graph:
    """Return a model of ``calls`` token shifts in a row, each with a state of its own."""
    emitter = Emitter(new_graph("toy_exported"))
    x = emitter.input("x", "float32", ["rows", HIDDEN])
    presents = []
    for number in range(calls):
        layer = emitter.scope(f"layers.{number}")
        x = layer.op("Neg", [x], "normed", dtype="float32", shape=shape)
        previous = emitter.input(f"state_{number}", "float32", [1, HIDDEN])
        x, present = layer.multi_op(
            TOKEN_SHIFT,
            [x, previous],
            "token_shift",
            [("out", "float32", ["rows", HIDDEN]), ("present", "float32", [1, HIDDEN])],
            domain=FUNCTION_DOMAIN,
        )
        presents.append(present)
    emitter.output(x, "y", "float32", ["rows", HIDDEN])
    for number, present in enumerate(presents):
        emitter.output(present, f"present_{number}", "float32", [1, HIDDEN])
    return emitter.graph


def refused(graph: gs.Graph, *passes: Any) -> RowpackError:
    """Run ``passes`` and return the error they must raise."""
    with pytest.raises(RowpackError) as caught:
        run_passes(graph, passes)
    assert caught.value.code == "surgery_condition"
    assert caught.value.problem.where and caught.value.problem.found and caught.value.problem.expected
    return caught.value


@pytest.mark.parametrize("shape", [None, ("rows", "width"), ("batch", HIDDEN)])
def test_a_call_whose_widths_are_not_known_is_refused(shape: Shape | None) -> None:
    error = refused(shift_graph(shape), MixerReplacement(TOKEN_SHIFT, token_shift_chunk, 30))
    assert error.problem.where == "layers.0.token_shift"
    assert "layers.0.normed" in str(error.problem.found)


def test_a_replacement_over_its_node_budget_is_refused() -> None:
    error = refused(shift_graph(), MixerReplacement(TOKEN_SHIFT, token_shift_chunk, 2))
    assert error.problem.found == "3 nodes"


def calls_itself(emitter: Emitter, inputs: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """Emit another call instead of a replacement."""
    outputs = [("out", "float32", ["rows", HIDDEN]), ("present", "float32", [1, HIDDEN])]
    return emitter.multi_op(TOKEN_SHIFT, inputs, "again", outputs, domain=FUNCTION_DOMAIN)


def test_calls_that_are_left_are_noticed() -> None:
    error = refused(shift_graph(calls=2), MixerReplacement(TOKEN_SHIFT, calls_itself, 30))
    assert error.problem.found == "2 calls"


class Renaming:
    """A pass that changes an output's name, and thereby what loaders see."""

    name = "renaming"

    def check_before(self, graph: gs.Graph) -> None: ...

    def apply(self, graph: gs.Graph) -> None:
        graph.outputs[0].name = "z"

    def check_after(self, graph: gs.Graph) -> None: ...


def test_a_pass_that_changes_the_models_outputs_is_noticed() -> None:
    error = refused(shift_graph(), Renaming())
    assert "'z'" in str(error.problem.found) and "'y'" in str(error.problem.expected)


class Forgetful(MixerReplacement):
    """A replacement that loses its change."""

    def apply(self, graph: gs.Graph) -> None: ...


def test_a_replacement_that_does_nothing_is_noticed() -> None:
    refused(shift_graph(), Forgetful(TOKEN_SHIFT, token_shift_chunk, 30))


def projection_graph(rows: int | str = "rows", constant: bool = True, **attributes: int) -> gs.Graph:
    emitter = Emitter(new_graph("toy_exported"))
    x = emitter.input("x", "float32", [rows, HIDDEN])
    values = np.arange(3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN)
    weight = emitter.constant("w", values) if constant else emitter.input("w", "float32", [3, HIDDEN])
    y = emitter.op("Gemm", [x, weight], "proj", **(attributes or {"transB": 1}))
    emitter.output(y, "y", "float32", [rows, 3])
    return emitter.graph


@pytest.mark.parametrize(
    "graph",
    [
        projection_graph(transB=0),
        projection_graph(transA=1, transB=1),
        projection_graph(constant=False),
    ],
    ids=["weight as [in, out]", "rows as columns", "weight computed"],
)
def test_projections_of_another_form_are_refused(graph: gs.Graph) -> None:
    assert refused(graph, WeightOnTheLeft()).problem.where == "proj"


def test_a_projection_with_a_bias_is_refused() -> None:
    graph = projection_graph()
    graph.nodes[0].inputs.append(gs.Constant("bias", np.ones(3, np.float32)))
    refused(graph, WeightOnTheLeft())


class ForgetfulForm(WeightOnTheLeft):
    """A pass that misses every projection."""

    def apply(self, graph: gs.Graph) -> None: ...


def test_a_missed_projection_is_noticed() -> None:
    refused(projection_graph(), ForgetfulForm())


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_the_weight_on_the_left_computes_the_same(rows: int) -> None:
    x = np.random.default_rng(0).standard_normal((rows, HIDDEN)).astype(np.float32)
    graph = projection_graph()
    before = cpu_session(export_model(graph).SerializeToString()).run(None, {"x": x})[0]
    run_passes(graph, [WeightOnTheLeft()])
    assert [node.op for node in graph.nodes] == ["Transpose", "MatMul", "Transpose"]
    after = cpu_session(export_model(graph).SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_a_projection_of_one_row_keeps_its_form() -> None:
    graph = projection_graph(rows=1)
    run_passes(graph, [WeightOnTheLeft()])
    assert [node.op for node in graph.nodes] == ["Gemm"]


def test_rows_that_feed_several_projections_are_transposed_once() -> None:
    emitter = Emitter(new_graph("toy_exported"))
    x = emitter.input("x", "float32", ["rows", HIDDEN])
    for name in ("key", "value"):
        weight = emitter.constant(name, np.random.default_rng(1).standard_normal((3, HIDDEN)).astype(np.float32))
        emitter.output(linear(emitter, x, weight, name), f"out_{name}", "float32", ["rows", 3])
    run_passes(emitter.graph, [WeightOnTheLeft()])
    transposed = [node.name for node in emitter.graph.nodes if node.op == "Transpose" and node.inputs[0] is x]
    assert len(transposed) == 1


def test_a_model_without_a_free_row_count_is_refused() -> None:
    assert "x" in str(refused(projection_graph(rows=1), FixRowCount(1)).problem.found)


class ForgetfulCount(FixRowCount):
    """A pass that fixes nothing."""

    def apply(self, graph: gs.Graph) -> None: ...


def test_a_row_count_left_free_is_noticed() -> None:
    assert refused(projection_graph(), ForgetfulCount(1)).problem.where == "x"


@pytest.mark.parametrize(
    ("extent", "fixed"), [("rows", 1), ("cache_rows+rows", "cache_rows+1"), ("cache_rows", "cache_rows"), (7, 7)]
)
def test_only_the_row_count_is_fixed(extent: int | str, fixed: int | str) -> None:
    emitter = Emitter(new_graph("toy_exported"))
    x = emitter.input("x", "float32", ["rows", extent])
    emitter.output(emitter.op("Neg", [x], "minus"), "y", "float32", ["rows", extent])
    run_passes(emitter.graph, [FixRowCount(1)])
    assert emitter.graph.inputs[0].shape == [1, fixed]
    assert emitter.graph.outputs[0].shape == [1, fixed]


@pytest.mark.parametrize(("op", "domain"), [("Loop", ""), ("Scan", ""), ("If", ""), ("GatedDeltaRule", "rowpack")])
def test_operators_that_are_not_plain_are_refused(op: str, domain: str) -> None:
    emitter = Emitter(new_graph("toy"))
    x = emitter.input("x", "float32", [1])
    emitter.op(op, [x], "a", domain=domain)
    emitter.op(op, [x], "b", domain=domain)
    with pytest.raises(RowpackError) as caught:
        check_plain(emitter.graph)
    assert caught.value.code == "surgery_condition"
    assert caught.value.problem.found == f"2 × {domain or 'ai.onnx'}.{op}"


@pytest.mark.parametrize("change", [decode_model, lambda model: prefill_model(model, 64)], ids=["decode", "prefill"])
def test_a_call_that_no_pass_knows_is_refused(change: Any) -> None:
    """A model exported by a newer version with another mixer must not come out with a call left in it."""
    model = export_model(shift_graph(), [function(TOKEN_SHIFT)])
    model.graph.node[1].op_type = model.functions[0].name = "TokenShift5"
    with pytest.raises(RowpackError) as caught:
        change(model)
    assert caught.value.code == "surgery_condition"
    assert caught.value.problem.found == "1 × rowpack.TokenShift5"


@pytest.mark.parametrize("lowering", [token_shift_chunk, token_shift_row])
def test_states_handed_through_keep_the_outputs_names(lowering: Lowering) -> None:
    """One row's shift hands its inputs on; an output of the model cannot be an input under another name."""
    graph = shift_graph(calls=2)
    outputs = [output.name for output in graph.outputs]
    run_passes(graph, [MixerReplacement(TOKEN_SHIFT, lowering, 30)])
    assert [output.name for output in graph.outputs] == outputs
    assert not {id(tensor) for tensor in graph.inputs} & {id(tensor) for tensor in graph.outputs}
    x, first, second = (np.full((1, HIDDEN), value, np.float32) for value in (1.0, 2.0, 3.0))
    session = cpu_session(export_model(graph).SerializeToString())
    y, *presents = session.run(None, {"x": x, "state_0": first, "state_1": second})
    # The first shift gives its state, whose negative goes into the second; the second gives its own state.
    assert [value.flat[0] for value in (y, *presents)] == [3.0, -1.0, -2.0]


def test_passes_have_names_that_say_what_they_do() -> None:
    decode, prefill = ([step.name for step in passes] for passes in (decode_passes(), prefill_passes(64)))
    assert "GatedDeltaRule by DeltaRuleChunk" in prefill
    assert "Wkv4 by wkv_row" in decode
    for names in (decode, prefill):
        assert len(set(names)) == len(names)
