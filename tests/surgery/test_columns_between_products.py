"""What stands between two products computes the same in columns, and stays in rows wherever something needs rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from subgraph import cpu_session

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.linear import linear
from rowpack.graph.model import export_model, new_graph
from rowpack.surgery.columns_between_products import ColumnsBetweenProducts
from rowpack.surgery.projection_form import WeightOnTheLeft
from rowpack.surgery.surgery_pass import run_passes
from rowpack_loaders.errors import RowpackError

HIDDEN, WIDE = 6, 10

Middle = Callable[[Emitter, Tensor], Tensor]


def gated(emitter: Emitter, x: Tensor) -> Tensor:
    """Emit silu(gate) · up of the two halves."""
    gate, up = emitter.split(x, [WIDE, WIDE], 1, "gate_up", ["gate", "up"])
    silu = emitter.op("Mul", [gate, emitter.op("Sigmoid", [gate], "sigmoid")], "silu")
    return emitter.op("Mul", [silu, up], "activated")


def squared(emitter: Emitter, x: Tensor) -> Tensor:
    """Emit the square of the positive part, halved."""
    positive = emitter.op("Relu", [x], "positive")
    square = emitter.op("Mul", [positive, positive], "squared")
    return emitter.op("Mul", [square, emitter.floats("half", 0.5)], "halved")


def scaled_by_channel(emitter: Emitter, x: Tensor) -> Tensor:
    """Emit x times a vector over the channels."""
    return emitter.op("Mul", [x, emitter.floats("scale", *(0.1 * np.arange(2 * WIDE)))], "scaled")


def beside_an_input(emitter: Emitter, x: Tensor) -> Tensor:
    """Emit x times rows that come from elsewhere."""
    return emitter.op("Mul", [x, emitter.input("rows_of_another", "float32", ["rows", 2 * WIDE])], "together")


def normed(emitter: Emitter, x: Tensor) -> Tensor:
    """Emit x over the largest of its row."""
    return emitter.op("Mul", [x, emitter.op("ReduceMax", [x, emitter.ints(1)], "largest", keepdims=1)], "normed")


def two_products(middle: Middle, *, also_an_output: bool = False) -> gs.Graph:
    """Return x → product → ``middle`` → product, and the middle itself if asked."""
    random = np.random.default_rng(3)
    emitter = Emitter(new_graph("toy_exported"))
    x = emitter.input("x", "float32", ["rows", HIDDEN])
    wide = linear(emitter, x, weight(emitter, "up", random, 2 * WIDE, HIDDEN), "up_proj")
    between = middle(emitter, wide)
    inner = WIDE if middle is gated else 2 * WIDE
    out = linear(emitter, between, weight(emitter, "down", random, HIDDEN, inner), "down_proj")
    emitter.output(out, "y", "float32", ["rows", HIDDEN])
    if also_an_output:
        emitter.output(between, "between", "float32", ["rows", inner])
    return emitter.graph


def weight(emitter: Emitter, name: str, random: np.random.Generator, out: int, inside: int) -> Tensor:
    """Return a random weight ``[out, inside]``."""
    return emitter.constant(name, random.standard_normal((out, inside)).astype(np.float32))


def transposes(graph: gs.Graph) -> int:
    """Return how many there are."""
    return sum(node.op == "Transpose" for node in graph.nodes)


def outputs(graph: gs.Graph, rows: int) -> list[np.ndarray]:
    """Run the model over random rows."""
    session = cpu_session(export_model(graph).SerializeToString())
    random = np.random.default_rng(rows)
    shapes = {entry.name: (rows, entry.shape[1]) for entry in session.get_inputs()}
    return list(
        session.run(None, {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()})
    )


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("middle", [gated, squared])
def test_the_middle_in_columns_computes_the_same(middle: Middle, rows: int) -> None:
    graph = two_products(middle)
    before = outputs(graph, rows)
    run_passes(graph, [WeightOnTheLeft(), ColumnsBetweenProducts()])
    assert transposes(graph) == 2, "of the first rows and of the last columns"
    np.testing.assert_allclose(outputs(graph, rows)[0], before[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("middle", [scaled_by_channel, beside_an_input, normed])
def test_what_needs_rows_keeps_them(middle: Middle) -> None:
    graph = two_products(middle)
    before = outputs(graph, 7)
    run_passes(graph, [WeightOnTheLeft(), ColumnsBetweenProducts()])
    assert transposes(graph) == 4
    np.testing.assert_allclose(outputs(graph, 7)[0], before[0], rtol=1e-5, atol=1e-6)


def test_a_middle_that_the_model_gives_out_stays_in_rows() -> None:
    graph = two_products(gated, also_an_output=True)
    before = outputs(graph, 7)
    run_passes(graph, [WeightOnTheLeft(), ColumnsBetweenProducts()])
    assert transposes(graph) == 4
    for after, wanted in zip(outputs(graph, 7), before, strict=True):
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-6)


class ForgetfulPass(ColumnsBetweenProducts):
    """A pass that moves nothing."""

    def apply(self, graph: gs.Graph) -> None: ...


def test_transposes_left_between_products_are_noticed() -> None:
    graph = two_products(squared)
    with pytest.raises(RowpackError) as caught:
        run_passes(graph, [WeightOnTheLeft(), ForgetfulPass()])
    assert caught.value.code == "surgery_condition"
    assert "columns" in str(caught.value.problem.where)
