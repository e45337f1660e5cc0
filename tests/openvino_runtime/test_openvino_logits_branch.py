"""Logits in a branch of an OpenVINO graph: computed where they are wanted, and nothing else moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from openvino_bundles import OnOpenVino

from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS, HostSequence

pytestmark = pytest.mark.openvino

HIDDEN, VOCAB = 4, 7
TOKENS = np.array([5, 6, 7, 7, 7, 8], dtype=np.int32)


def import_openvino() -> Any:
    from rowpack_loaders.runtimes.openvino import library

    return library.import_openvino()


@pytest.fixture
def branch_off_logits() -> Callable[[Any, str], bool]:
    """The function, imported only where there is OpenVINO."""
    from rowpack_loaders.runtimes.openvino import logits_branch

    return logits_branch.branch_off_logits


def graph(*, shares_row: bool = False, more: str = "") -> Any:
    """A row chosen among all, half of it, and a head; the state is twice all rows, or the half row."""
    openvino = import_openvino()
    operators = openvino.opset8
    x = operators.parameter([-1, HIDDEN], openvino.Type.f32, name="x")
    x.output(0).set_names({"x"})
    doubled = operators.add(x, x)
    last = operators.gather(doubled, operators.constant(np.array([-1])), operators.constant(np.int64(0)))
    halved = operators.multiply(last, operators.constant(np.float32(0.5)))
    weight = np.arange(HIDDEN * VOCAB, dtype=np.float32).reshape(HIDDEN, VOCAB)
    results = []
    head = operators.matmul(halved, operators.constant(weight), False, False)
    for name, value in (("logits", head), ("state", halved if shares_row else doubled)):
        value.output(0).set_names({name})
        results.append(operators.result(value))
    parameters = [x]
    if more:
        extra = operators.parameter([1], openvino.Type.f32, name=more)
        extra.output(0).set_names({more})
        parameters.append(extra)
    return openvino.Model(results, parameters, "graph")


def outputs_of(model: Any, feed: dict[str, Any]) -> dict[str, Any]:
    compiled = import_openvino().Core().compile_model(model, "CPU")
    found = compiled(feed)
    return {name: found[compiled.output(name)].copy() for name in ("logits", "state")}


@pytest.mark.parametrize("shares_row", [False, True])
def test_only_what_leads_to_logits_alone_is_moved(
    shares_row: bool, branch_off_logits: Callable[[Any, str], bool]
) -> None:
    x = np.arange(3 * HIDDEN, dtype=np.float32).reshape(3, HIDDEN)
    expected = outputs_of(graph(shares_row=shares_row), {"x": x})
    model = graph(shares_row=shares_row)
    assert branch_off_logits(model, "logits")
    left = {node.get_type_name() for node in model.get_ops()}
    assert "MatMul" not in left
    assert ("Multiply" in left) == shares_row
    for wanted in (True, False, True):
        found = outputs_of(model, {"x": x, WANTS_LOGITS: np.array([wanted])})
        np.testing.assert_array_equal(found["state"], expected["state"])
        np.testing.assert_array_equal(found["logits"], expected["logits"] if wanted else np.zeros((1, VOCAB)))


@pytest.mark.parametrize(("named", "more"), [("nothing", ""), ("logits", WANTS_LOGITS)])
def test_a_graph_without_the_result_or_with_the_name_stays(
    named: str, more: str, branch_off_logits: Callable[[Any, str], bool]
) -> None:
    model = graph(more=more)
    before = [node.get_name() for node in model.get_ordered_ops()]
    assert not branch_off_logits(model, named)
    assert [node.get_name() for node in model.get_ordered_ops()] == before


def test_logits_that_lead_elsewhere_stay(branch_off_logits: Callable[[Any, str], bool]) -> None:
    model = graph()
    (result,) = (found for found in model.get_results() if "logits" in found.input_value(0).get_names())
    operators = import_openvino().opset8
    model.add_results([operators.result(operators.relu(result.input_value(0)))])
    assert not branch_off_logits(model, "logits")


def test_a_leading_chunk_computes_no_logits_and_the_same_states(on_openvino: OnOpenVino) -> None:
    leading, whole = (on_openvino.decoder.session()._sequence for _ in range(2))
    assert isinstance(leading, HostSequence)
    assert isinstance(whole, HostSequence)
    assert np.abs(whole.run_chunk(TOKENS)).max() > 1
    leading.run_leading_chunk(TOKENS)
    assert not leading._logits.any()
    for left, right in zip(leading.buffers.fixed, whole.buffers.fixed, strict=True):
        np.testing.assert_array_equal(left.pair[leading.buffers.front], right.pair[whole.buffers.front])
    np.testing.assert_array_equal(leading.run_chunk(TOKENS[:3]), whole.run_chunk(TOKENS[:3]))
