"""A state that LinearAttention takes over is bound in the operator's shape, and written over what was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rowpack_loaders import RowpackError, load, open_bundle
from rowpack_loaders.manifest import StateRecord
from rowpack_loaders.runtimes import ort as ort_runtime
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_in_place_states import writes_over_its_state
from rowpack_loaders.runtimes.ort_state_edges import EngineEdges, StateEdges
from rowpack_loaders.session import Session

Bundles = dict[str, Path]
HEADS, KEY_DIM, VALUE_DIM = 2, 8, 4
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 2000, 70)]


def state(number: int, **changes: Any) -> StateRecord:
    facts: dict[str, Any] = {
        "role": "recurrent",
        "layer": number,
        "input": f"ssm_state_{number}",
        "output": f"present_ssm_{number}",
        "dtype": "float32",
        "shape": (HEADS, KEY_DIM, VALUE_DIM),
        "layout": "heads, key, value",
        "initial_value": 0.0,
        "update": "replace",
        "rewindable": False,
    }
    return StateRecord(**facts | changes)


class Graph:
    """Layers of one operator each, numbered as given, with a reshape before and behind it."""

    def __init__(self, *numbers: int) -> None:
        self.nodes: list[Any] = []
        floats = (("q", HEADS * KEY_DIM), ("k", HEADS * KEY_DIM), ("v", HEADS * VALUE_DIM), ("d", HEADS), ("b", HEADS))
        self.inputs = [helper.make_tensor_value_info(name, 1, [1, "rows", width]) for name, width in floats]
        self.outputs: list[Any] = []
        self.infos: list[Any] = []
        for number in numbers:
            self.layer(number)

    def layer(self, number: int, domain: str = "com.microsoft") -> None:
        shape = [HEADS, KEY_DIM, VALUE_DIM]
        self.inputs.append(helper.make_tensor_value_info(f"ssm_state_{number}", 1, shape))
        self.outputs += [
            helper.make_tensor_value_info(f"present_ssm_{number}", 1, shape),
            helper.make_tensor_value_info(f"out_{number}", 1, [1, "rows", HEADS * VALUE_DIM]),
        ]
        self.infos.append(helper.make_tensor_value_info(f"batch_{number}", 1, [1, *shape]))
        self.nodes += [
            helper.make_node("Reshape", [f"ssm_state_{number}", "with_batch"], [f"batch_{number}"]),
            helper.make_node(
                "LinearAttention",
                ["q", "k", "v", f"batch_{number}", "d", "b"],
                [f"out_{number}", f"next_{number}"],
                domain=domain,
                q_num_heads=HEADS,
                kv_num_heads=HEADS,
                update_rule="gated_delta",
                scale=1.0,
            ),
            helper.make_node("Reshape", [f"next_{number}", "without"], [f"present_ssm_{number}"]),
        ]

    def model(self) -> bytes:
        shapes = {"with_batch": [1, HEADS, KEY_DIM, VALUE_DIM], "without": [HEADS, KEY_DIM, VALUE_DIM]}
        constants = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in shapes.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, constants, value_info=self.infos)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def edges_of(model: bytes, *states: StateRecord) -> StateEdges:
    edges = EngineEdges(model, states, where="engine.onnx")
    return edges.taken_off(edges.turnable)


def taken_over(model: bytes, *states: StateRecord) -> frozenset[str]:
    return EngineEdges(model, states, where="engine.onnx").read_and_written


def run(model: bytes, states: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    widths = {"q": HEADS * KEY_DIM, "k": HEADS * KEY_DIM, "v": HEADS * VALUE_DIM, "d": HEADS, "b": HEADS}
    rows = {name: -random.random((1, 3, width), np.float32) for name, width in widths.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows | states), strict=True))


def test_the_reshapes_go_and_the_numbers_stay() -> None:
    model = Graph(1, 10).model()  # one name begins with the other
    edges = edges_of(model, state(1), state(10))
    changed = onnx.ModelProto.FromString(edges.model)
    onnx.checker.check_model(changed)
    assert [node.op_type for node in changed.graph.node] == ["LinearAttention"] * 2
    assert [info.name for info in changed.graph.value_info] == []
    assert taken_over(model, state(1), state(10)) == {"ssm_state_1", "ssm_state_10"}
    batch = (1, HEADS, KEY_DIM, VALUE_DIM)
    assert edges.shapes == dict.fromkeys(["ssm_state_1", "present_ssm_1", "ssm_state_10", "present_ssm_10"], batch)
    random = np.random.default_rng(2)
    states = {f"ssm_state_{n}": random.random((HEADS, KEY_DIM, VALUE_DIM), np.float32) for n in (1, 10)}
    before = run(model, states)
    after = run(edges.model, {name: value[None] for name, value in states.items()})
    for name, value in before.items():
        np.testing.assert_array_equal(after[name].reshape(value.shape), value, err_msg=name)


def test_one_state_of_two_is_taken_over() -> None:
    graph = Graph(0, 1)
    graph.nodes.append(helper.make_node("Neg", ["ssm_state_1"], ["negative"]))
    graph.outputs.append(helper.make_tensor_value_info("negative", 1, None))
    edges = edges_of(graph.model(), state(0), state(1))
    assert taken_over(graph.model(), state(0), state(1)) == {"ssm_state_0"}
    assert sum(node.op_type == "Reshape" for node in onnx.ModelProto.FromString(edges.model).graph.node) == 2


def reads_the_state_elsewhere(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["ssm_state_0"], ["spare"]))


def reads_the_state_in_a_branch(graph: Graph) -> None:
    inner = helper.make_graph(
        [helper.make_node("Neg", ["ssm_state_0"], ["y"])], "inner", [], [helper.make_tensor_value_info("y", 1, None)]
    )
    graph.nodes.append(helper.make_node("If", ["condition"], ["spare"], then_branch=inner, else_branch=inner))
    graph.inputs.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, [1]))


def reads_what_is_between(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["batch_0"], ["spare"]))


def reads_the_next_state(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["next_0"], ["spare"]))


def reads_the_output(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["present_ssm_0"], ["spare"]))


def gives_out_another_state(graph: Graph) -> None:
    graph.layer(1)
    graph.nodes[2].input[0], graph.nodes[5].input[0] = "next_1", "next_0"


def is_another_domain(graph: Graph) -> None:
    graph.nodes[1].domain = "com.example"


def is_another_operator(graph: Graph) -> None:
    graph.nodes[1].op_type = "LinearAttentionGate"


def has_no_way_out(graph: Graph) -> None:
    del graph.nodes[2], graph.outputs[0]


@pytest.mark.parametrize(
    "change",
    [
        reads_the_state_elsewhere,
        reads_the_state_in_a_branch,
        reads_what_is_between,
        reads_the_next_state,
        reads_the_output,
        gives_out_another_state,
        is_another_domain,
        is_another_operator,
        has_no_way_out,
    ],
)
def test_any_other_way_in_or_out_stays_as_it_is(change: Any) -> None:
    graph = Graph(0)
    change(graph)
    model = graph.model()
    edges = edges_of(model, state(0))
    assert (edges.model, edges.shapes, taken_over(model, state(0))) == (model, {}, frozenset())


@pytest.mark.parametrize(
    "record",
    [
        state(0, dtype="float16"),
        state(0, shape=(HEADS, KEY_DIM)),
        state(0, shape=(HEADS, KEY_DIM, VALUE_DIM + 1)),
        state(0, shape=(1, HEADS, KEY_DIM, VALUE_DIM)),
        state(0, input="other"),
        state(0, output="other"),
        state(0, input="ssm_state_0" * 20),
    ],
)
def test_a_state_that_is_none_of_the_operator_stays(record: StateRecord) -> None:
    model = Graph(0).model()
    assert edges_of(model, record).model == model


def test_broken_bytes_are_refused() -> None:
    model = Graph(0).model()
    with pytest.raises(RowpackError) as caught:
        edges_of(model[:-7], state(0))
    assert caught.value.code == "onnx_malformed"


@pytest.mark.parametrize(("heads", "key_dim", "value_dim"), [(1, 8, 8), (16, 128, 128), (3, 16, 32)])
def test_the_installed_operator_may_write_over_its_state(heads: int, key_dim: int, value_dim: int) -> None:
    assert writes_over_its_state(heads, key_dim, value_dim)


def test_a_head_that_no_model_has_is_not_tried() -> None:
    assert not writes_over_its_state(1, 2**31, 2**31)


def test_an_operator_that_gives_other_numbers_in_place_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from rowpack_loaders.runtimes import ort_in_place_states as tried

    class Disturbed:
        """Reads the past after it was overwritten, as a kernel could that works on whole states."""

        def __init__(self, session: Any) -> None:
            self._session = session

        def io_binding(self) -> Any:
            return self._session.io_binding()

        def run_with_iobinding(self, binding: Any) -> None:
            self._session.run_with_iobinding(binding)
            self._session.run_with_iobinding(binding)

    is_same = tried._is_same
    monkeypatch.setattr(tried, "_is_same", lambda session, *sizes: is_same(Disturbed(session), *sizes))
    tried.writes_over_its_state.cache_clear()
    try:
        assert not tried.writes_over_its_state(2, 8, 8)
    finally:
        tried.writes_over_its_state.cache_clear()


def pairs(session: Session) -> dict[str, bool]:
    """Return, by state, whether it is written over what is read."""
    sequence: Any = session._sequence
    return {held.record.input: held.pair[0] is held.pair[1] for held in sequence.buffers.fixed}


def answers(session: Session) -> list[np.ndarray[Any, Any]]:
    """Run chunks, steps and a way back; return every row of logits."""
    found = [session.prefill(PROMPT), session.step(7)]
    taken = session.snapshot()
    found += [session.step(9), session.extend(PROMPT[:5])]
    session.restore(taken)
    found.append(session.step(11))
    session.reset()
    return [*found, session.prefill(PROMPT[:3], mode="token-loop")]


@pytest.mark.parametrize("name", ["auto", "fused", "fused-single"])
def test_states_in_place_give_the_same_bits(name: str, bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(bundles[name], threads=1) as decoder:
        in_place = decoder.session()
        assert {key for key, value in pairs(in_place).items() if value} == {f"ssm_state_{n}" for n in range(6)}
        found = answers(in_place)
        held: Any = in_place._sequence
    monkeypatch.setattr(ort_runtime, "writes_over_its_state", lambda *shape: False)
    with load(bundles[name], threads=1) as decoder:
        apart = decoder.session()
        assert not any(pairs(apart).values())
        expected = answers(apart)
        also_held: Any = apart._sequence
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, other)
    with open_bundle(bundles[name]) as bundle:
        recurrent = [each for each in bundle.states if each.role == "recurrent"]
    saved = also_held.buffers.byte_count - held.buffers.byte_count
    assert saved == sum(each.fixed_bytes for each in recurrent) > 0


def test_states_of_plain_graphs_have_a_front_and_a_back(bundles: Bundles) -> None:
    with load(bundles["plain"], threads=1) as decoder:
        assert not any(pairs(decoder.session()).values())


def test_a_snapshot_is_no_view_of_a_state_in_place(bundles: Bundles) -> None:
    with load(bundles["auto"], threads=1) as decoder:
        session = decoder.session()
        session.prefill(PROMPT)
        taken = session.snapshot()
        before = {name: value.copy() for name, value in taken.states.items()}
        session.step(5)
        for name, value in before.items():
            np.testing.assert_array_equal(taken.states[name], value, err_msg=name)
