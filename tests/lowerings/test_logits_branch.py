"""What only logits need is computed where they are asked for, and nowhere else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from built_graphs import QWEN, RWKV
from exact_products import needs_exact_products
from onnx import TensorProto, helper, numpy_helper

from rowpack import BuildRequest, build
from rowpack.engines.fused_operators.choice import LOWERINGS
from rowpack_loaders import load
from rowpack_loaders.onnx_graph_index import GraphIndex
from rowpack_loaders.runtimes import ort as ort_runtime
from rowpack_loaders.runtimes import ort_branch_products, ort_state_edges
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_branch_products import multiplies_in_a_branch
from rowpack_loaders.runtimes.ort_logits_branch import logits_branch

onnxruntime = import_onnxruntime()
ROWS, VOCAB = 3, 5
PROMPT = [int(token) for token in np.random.default_rng(4).integers(3, 900, 150)]


class Graph:
    """A model in small: a state is summed up, logits are made from the last row by two more products."""

    def __init__(self) -> None:
        self.nodes = [
            helper.make_node("MatMul", ["rows", "mix"], ["mixed"], name="mix"),
            helper.make_node("ReduceSum", ["mixed", "axis"], ["sum"], name="sum", keepdims=1),
            helper.make_node("Add", ["state", "sum"], ["present"], name="state"),
            helper.make_node("Gather", ["mixed", "last"], ["row"], name="row", axis=0),
            helper.make_node("Relu", ["row"], ["activated"], name="activation"),
            helper.make_node("MatMul", ["activated", "head"], ["logits"], name="head"),
        ]
        self.inputs = [self.info("rows", ROWS, 4), self.info("state", 1, 4)]
        self.outputs = [self.info("logits", 1, VOCAB), self.info("present", 1, 4)]
        self.infos = [self.info("activated", 1, 4), self.info("mixed", ROWS, 4)]

    @staticmethod
    def info(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def graph(self) -> onnx.GraphProto:
        random = np.random.default_rng(0)
        constants = {
            "mix": random.standard_normal((4, 4), np.float32),
            "head": random.standard_normal((4, VOCAB), np.float32),
            "axis": np.array([0]),
            "last": np.array([-1]),
        }
        initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        return helper.make_graph(self.nodes, "g", self.inputs, self.outputs, initializers, value_info=self.infos)


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def branched(graph: onnx.GraphProto) -> onnx.GraphProto | None:
    """Return the graph with the branch, None where it stays as it is."""
    index = GraphIndex(graph.SerializeToString(), "engine.onnx")
    changes = logits_branch(index, "logits", VOCAB)
    return onnx.GraphProto.FromString(index.changed(changes)) if changes else None


def session_of(graph: onnx.GraphProto) -> Any:
    return onnxruntime.InferenceSession(model_of(graph).SerializeToString(), providers=["CPUExecutionProvider"])


def test_what_leads_to_logits_alone_is_moved() -> None:
    changed = branched(Graph().graph())
    assert changed is not None
    onnx.checker.check_model(model_of(changed), full_check=True)
    assert [node.name for node in changed.node] == ["mix", "sum", "state", "logits"]
    then = next(attribute.g for attribute in changed.node[-1].attribute if attribute.name == "then_branch")
    assert [node.name for node in then.node] == ["row", "activation", "head"]
    assert [info.name for info in then.value_info] == ["activated"]
    assert [info.name for info in changed.value_info] == ["mixed"]
    assert [(info.name, info.type.tensor_type.elem_type) for info in changed.input][-1] == (WANTS_LOGITS, 9)


@pytest.mark.parametrize("wants_logits", [True, False])
def test_the_numbers_stay(wants_logits: bool) -> None:
    changed = branched(Graph().graph())
    assert changed is not None
    random = np.random.default_rng(1)
    feed = {"rows": random.random((ROWS, 4), np.float32), "state": random.random((1, 4), np.float32)}
    logits, present = session_of(Graph().graph()).run(["logits", "present"], feed)
    also, also_present = session_of(changed).run(["logits", "present"], {**feed, WANTS_LOGITS: np.array(wants_logits)})
    np.testing.assert_array_equal(also_present, present)
    np.testing.assert_array_equal(also, logits if wants_logits else np.empty((0, VOCAB), np.float32))


def gives_out_a_result(graph: Graph) -> None:
    graph.outputs.append(Graph.info("activated", 1, 4))


def reads_a_result_elsewhere(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["activated"], ["negative"], name="negative"))
    graph.outputs.append(Graph.info("negative", 1, 4))


def reads_a_result_in_a_branch(graph: Graph) -> None:
    inner = helper.make_graph(
        [helper.make_node("Neg", ["activated"], ["inner"])], "inner", [], [Graph.info("inner", 1, 4)]
    )
    graph.inputs.append(helper.make_tensor_value_info("yes", TensorProto.BOOL, []))
    graph.nodes.append(helper.make_node("If", ["yes"], ["chosen"], name="chosen", then_branch=inner, else_branch=inner))
    graph.outputs.append(Graph.info("chosen", 1, 4))


@pytest.mark.parametrize("change", [gives_out_a_result, reads_a_result_elsewhere, reads_a_result_in_a_branch])
def test_what_is_needed_elsewhere_stays(change: Callable[[Graph], None]) -> None:
    graph = Graph()
    change(graph)
    changed = branched(graph.graph())
    assert changed is not None
    onnx.checker.check_model(model_of(changed), full_check=True)
    names = [node.name for node in changed.node]
    assert {"row", "activation"} <= set(names)
    assert "head" not in names


def reads_logits(graph: Graph) -> None:
    graph.nodes.append(helper.make_node("Neg", ["logits"], ["negative"]))
    graph.outputs.append(Graph.info("negative", 1, VOCAB))


def has_another_vocabulary(graph: Graph) -> None:
    graph.outputs[0] = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "vocabulary"])


def has_the_added_input(graph: Graph) -> None:
    graph.inputs.append(helper.make_tensor_value_info(WANTS_LOGITS, TensorProto.BOOL, []))


def makes_no_logits(graph: Graph) -> None:
    del graph.nodes[-1]


def makes_logits_twice(graph: Graph) -> None:
    graph.nodes.append(graph.nodes[-1])


@pytest.mark.parametrize(
    "change", [reads_logits, has_another_vocabulary, has_the_added_input, makes_no_logits, makes_logits_twice]
)
def test_a_graph_of_another_kind_stays_as_it_is(change: Callable[[Graph], None]) -> None:
    graph = Graph()
    change(graph)
    assert branched(graph.graph()) is None


# -- whole models -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Bundles of the trained models by name, each built when it is first asked for."""
    folder = tmp_path_factory.mktemp("branches")

    def path(name: str) -> Path:
        family, _, kind = name.partition("-")
        output = folder / f"{name}.bundle"
        if not output.exists():
            options: dict[str, Any] = {"lowering" if kind in LOWERINGS else "quantization": kind}
            request = BuildRequest({"qwen": QWEN, "rwkv": RWKV}[family], output, target_memory_bytes=2**30, **options)
            build(request)
        return output

    return path


KINDS = [
    *("qwen-plain", "qwen-auto", "qwen-int8", "qwen-int4", "rwkv-plain", "rwkv-int8"),
    *(pytest.param(name, marks=needs_exact_products) for name in ("qwen-w8a8", "rwkv-w8a8")),
]


@pytest.mark.parametrize("name", KINDS)
def test_chunks_that_others_follow_have_no_head(
    name: str, built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counted by what the runtime says that it ran: 150 tokens are three chunks, of which one has logits."""

    make = onnxruntime.SessionOptions

    def profiled_options() -> Any:
        options = make()
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        return options

    monkeypatch.setattr(ort_runtime.onnxruntime, "SessionOptions", profiled_options)
    with load(built(name), threads=1) as decoder:
        decoder.session().prefill(PROMPT)
        profile = json.loads(Path(decoder.runtime._engines["prefill"].session.end_profiling()).read_text("utf-8"))
        decoder.runtime._engines["decode"].session.end_profiling()
    ran = Counter(event["name"] for event in profile if event["name"].endswith("_kernel_time"))
    head = "lm_head" if name.startswith("qwen") else "head"
    products = {event: count for event, count in ran.items() if event.startswith(head)}
    assert sum(ran[event] for event in ran if event.startswith("embed")) >= 3
    assert products
    # An older runtime, that computes something else in a branch, runs packed products in every chunk.
    assert set(products.values()) == {1 if "int" not in name or multiplies_in_a_branch() else 3}


def test_the_runtime_is_one_that_multiplies_in_a_branch() -> None:
    """Or an older one; which of them do is in the module's text."""
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    assert multiplies_in_a_branch() == (version > (1, 28))


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("block", [32, 128])
def test_a_runtime_that_computes_something_else_is_found(
    width: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ort_branch_products.run_trial

    def wrong(content: bytes, output: str, inputs: dict[str, Any]) -> Any:
        logits = run(content, output, inputs)
        if WANTS_LOGITS in inputs:
            logits[0, -1] = np.nextafter(logits[0, -1], np.inf)
        return logits

    monkeypatch.setattr(ort_branch_products, "run_trial", wrong)
    assert not ort_branch_products._is_same(width, block)


@pytest.mark.parametrize(("name", "is_asked"), [("qwen-int8", False), ("qwen-auto", True)])
def test_packed_products_stay_where_the_runtime_cannot(
    name: str, is_asked: bool, built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_runtime, "multiplies_in_a_branch", lambda: False)
    with load(built(name), threads=1) as decoder:
        assert decoder.runtime._engines["prefill"].edges.asks_for_logits == is_asked
        assert np.isfinite(decoder.session().prefill(PROMPT)).all()


@pytest.mark.parametrize("name", KINDS)
def test_a_model_answers_as_without_the_branch(
    name: str, built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> list[Any]:
        with load(built(name), threads=1) as decoder:
            session = decoder.session()
            found = [session.prefill(PROMPT).copy(), *(session.step(token).copy() for token in (7, 8))]
            return [*found, session.snapshot().states]

    *logits, states = answers()
    monkeypatch.setattr(ort_state_edges, "logits_branch", lambda *_: {})
    *expected, expected_states = answers()
    for found, wanted in zip(logits, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert states.keys() == expected_states.keys()
    for key, value in expected_states.items():
        np.testing.assert_array_equal(states[key], value, err_msg=key)
