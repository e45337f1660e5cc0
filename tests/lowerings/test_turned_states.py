"""A convolution's state, which a graph turns before and after its work, is bound turned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from test_state_edges import PROMPT, answers, edges_of, state

from rowpack_loaders import load
from rowpack_loaders.manifest import StateRecord
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_state_edges import EngineEdges, StateEdges
from rowpack_loaders.session import Session

Bundles = dict[str, Path]
CHANNELS, COLUMNS = 6, 4


class TurnedGraph:
    """Layers that shift a row into a window of rows, numbered as given, with a transpose before and behind it."""

    def __init__(self, *numbers: int) -> None:
        self.nodes: list[Any] = []
        self.inputs = [helper.make_tensor_value_info("x", 1, [1, CHANNELS])]
        self.outputs: list[Any] = []
        for number in numbers:
            self.layer(number)

    def layer(self, number: int, **perm: Any) -> None:
        shape = [CHANNELS, COLUMNS]
        self.inputs.append(helper.make_tensor_value_info(f"conv_state_{number}", 1, shape))
        self.outputs += [
            helper.make_tensor_value_info(f"present_conv_{number}", 1, shape),
            helper.make_tensor_value_info(f"sum_{number}", 1, [1, CHANNELS]),
        ]
        rows, window = f"rows_{number}", f"window_{number}"
        self.nodes += [
            helper.make_node("Transpose", [f"conv_state_{number}"], [rows], **(perm or {"perm": [1, 0]})),
            helper.make_node("Slice", [rows, "one", "four", "zero"], [f"kept_{number}"]),
            helper.make_node("Concat", [f"kept_{number}", "x"], [window], axis=0),
            helper.make_node("ReduceSum", [window, "zero"], [f"sum_{number}"]),
            helper.make_node("Transpose", [window], [f"present_conv_{number}"], **(perm or {"perm": [1, 0]})),
        ]

    def model(self) -> bytes:
        constants = [
            numpy_helper.from_array(np.array([value], np.int64), name)
            for name, value in {"zero": 0, "one": 1, "four": 4}.items()
        ]
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return bytes(model.SerializeToString())


def conv_state(number: int, **changes: Any) -> StateRecord:
    facts: dict[str, Any] = {
        "role": "conv",
        "input": f"conv_state_{number}",
        "output": f"present_conv_{number}",
        "shape": (CHANNELS, COLUMNS),
        "layout": "channel_by_column",
    }
    return state(number, **facts | changes)


def run_turned(model: bytes, rows: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows), strict=True))


def turned_by(edges: StateEdges) -> set[str]:
    """Return the inputs of the states that are bound turned, which have another name then."""
    return {name for name, bound in edges.names.items() if bound != name and name.startswith("conv_state")}


@pytest.mark.parametrize("said", [{"perm": [1, 0]}, {}])
def test_transposes_at_the_edges_go_and_the_numbers_stay(said: dict[str, Any]) -> None:
    graph = TurnedGraph(1)
    graph.layer(10)
    if not said:
        for node in graph.nodes:
            if node.op_type == "Transpose":
                del node.attribute[:]  # two dimensions are turned by default
    model = graph.model()
    edges = edges_of(model, conv_state(1), conv_state(10))
    changed = onnx.ModelProto.FromString(edges.model)
    onnx.checker.check_model(changed, full_check=True)
    assert [node.op_type for node in changed.graph.node] == ["Slice", "Concat", "ReduceSum"] * 2
    assert turned_by(edges) == {"conv_state_1", "conv_state_10"}
    assert EngineEdges(model, [conv_state(1), conv_state(10)], where="engine.onnx").read_and_written == frozenset()
    random = np.random.default_rng(4)
    rows = {name: random.random((CHANNELS, COLUMNS), np.float32) for name in ("conv_state_1", "conv_state_10")}
    x = {"x": random.random((1, CHANNELS), np.float32)}
    before = run_turned(model, rows | x)
    after = run_turned(edges.model, {edges.names[name]: value.T.copy() for name, value in rows.items()} | x)
    for name, value in before.items():
        turned = after[edges.names.get(name, name)]
        np.testing.assert_array_equal(turned.T if name in edges.shapes else turned, value, err_msg=name)
    assert set(edges.shapes.values()) == {(COLUMNS, CHANNELS)}


def test_only_states_that_are_asked_for_are_turned() -> None:
    edges = EngineEdges(TurnedGraph(0, 1).model(), [conv_state(0), conv_state(1)], where="engine.onnx")
    assert edges.turnable == {"conv_state_0", "conv_state_1"}
    some = edges.taken_off({"conv_state_1", "another"})
    assert turned_by(some) == {"conv_state_1"}
    assert set(some.names) == {"conv_state_1", "present_conv_1"}
    assert edges.taken_off(()).model == TurnedGraph(0, 1).model()


def reads_the_conv_state_elsewhere(graph: TurnedGraph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["conv_state_0"], ["spare"]))


def reads_the_next_conv_state(graph: TurnedGraph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["present_conv_0"], ["spare"]))


def gives_out_what_is_turned(graph: TurnedGraph) -> None:
    graph.outputs.append(helper.make_tensor_value_info("window_0", 1, [COLUMNS, CHANNELS]))


def hands_the_state_on(graph: TurnedGraph) -> None:
    graph.nodes[4].input[0] = "rows_0"


def turns_nothing(graph: TurnedGraph) -> None:
    for node in (graph.nodes[0], graph.nodes[4]):
        node.attribute[0].ints[:] = [0, 1]


def turns_once(graph: TurnedGraph) -> None:
    graph.nodes[0].op_type = "Reshape"


def is_of_another_domain(graph: TurnedGraph) -> None:
    graph.nodes[4].domain = "com.example"


def gives_one_window_to_two(graph: TurnedGraph) -> None:
    graph.layer(1)
    graph.nodes[4].input[0] = "window_1"


@pytest.mark.parametrize(
    ("change", "turned"),
    [
        (reads_the_conv_state_elsewhere, set()),
        (reads_the_next_conv_state, set()),
        (gives_out_what_is_turned, set()),
        (hands_the_state_on, set()),
        (turns_nothing, set()),
        (turns_once, set()),
        (is_of_another_domain, set()),
        (gives_one_window_to_two, {"conv_state_0"}),
    ],
)
def test_any_other_way_through_is_not_turned(change: Any, turned: set[str]) -> None:
    graph = TurnedGraph(0)
    change(graph)
    edges = edges_of(graph.model(), conv_state(0), conv_state(1))
    assert turned_by(edges) == turned


@pytest.mark.parametrize(
    "record",
    [
        conv_state(0, dtype="float16"),
        conv_state(0, shape=(COLUMNS, CHANNELS)),
        conv_state(0, shape=(1, CHANNELS, COLUMNS)),
        conv_state(0, input="other"),
        conv_state(0, output="other"),
    ],
)
def test_a_state_that_the_graph_declares_otherwise_is_not_turned(record: StateRecord) -> None:
    model = TurnedGraph(0).model()
    assert edges_of(model, record).model == model


def convolution_buffers(session: Session) -> dict[str, tuple[int, ...]]:
    """Return the steps in bytes from value to value of each convolution's state."""
    sequence: Any = session._sequence
    return {held.record.input: held.pair[0].strides for held in sequence.buffers.fixed if held.record.role == "conv"}


@pytest.mark.parametrize("name", ["plain", "auto"])
def test_turned_states_give_the_same_bits(name: str, bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(bundles[name], threads=1) as decoder:
        turned = decoder.session()
        assert {strides[0] for strides in convolution_buffers(turned).values()} == {4}
        found = answers(turned)
        turned.prefill(PROMPT)
        taken = turned.snapshot()
    monkeypatch.setattr(EngineEdges, "turnable", frozenset())
    with load(bundles[name], threads=1) as decoder:
        straight = decoder.session()
        assert {strides[1] for strides in convolution_buffers(straight).values()} == {4}
        expected = answers(straight)
        straight.prefill(PROMPT)
        also_taken = straight.snapshot()
        for key, value in taken.states.items():
            np.testing.assert_array_equal(value, also_taken.states[key], err_msg=key)
            assert value.flags.c_contiguous
        straight.restore(taken)
        also = straight.step(3)
    with load(bundles[name], threads=1) as decoder:
        other = decoder.session()
        other.restore(also_taken)
        np.testing.assert_array_equal(other.step(3), also)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_engines_that_disagree_are_bound_as_the_manifest_says(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both engines share the buffers, so one that takes a state as it lies decides for the other."""
    first: list[EngineEdges] = []
    turnable = EngineEdges.turnable.fget
    assert turnable is not None

    def of_one_engine(edges: EngineEdges) -> frozenset[str]:
        first.append(edges)
        return turnable(edges) if edges is first[0] else frozenset()

    monkeypatch.setattr(EngineEdges, "turnable", property(of_one_engine))
    with load(bundles["plain"], threads=1) as decoder:
        session = decoder.session()
        assert {strides[1] for strides in convolution_buffers(session).values()} == {4}
        session.prefill(PROMPT)
        session.step(1)
    assert turnable(first[0])
    assert len({id(edges) for edges in first}) == 2


def test_a_state_that_only_logits_read_keeps_them_where_they_are() -> None:
    """Its transpose is taken off, so it cannot be moved into a branch as well."""
    graph = TurnedGraph(0)
    graph.nodes = [
        helper.make_node("Transpose", ["conv_state_0"], ["rows"], perm=[1, 0]),
        helper.make_node("ReduceSum", ["rows", "zero"], ["logits"]),
        helper.make_node("Concat", ["x"] * COLUMNS, ["window"], axis=0),
        helper.make_node("Transpose", ["window"], ["present_conv_0"], perm=[1, 0]),
    ]
    graph.outputs[1] = helper.make_tensor_value_info("logits", 1, [1, CHANNELS])
    edges = EngineEdges(graph.model(), [conv_state(0)], where="engine.onnx")
    turned = edges.taken_off(edges.turnable, logits=("logits", CHANNELS))
    onnx.checker.check_model(onnx.ModelProto.FromString(turned.model), full_check=True)
    assert turned_by(turned) == {"conv_state_0"}
    assert not turned.asks_for_logits
    assert edges.taken_off((), logits=("logits", CHANNELS)).asks_for_logits
