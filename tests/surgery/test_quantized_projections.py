"""Projections with eight-bit weights: what they compute, row by row, and what the pass refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from oracles import Array, relative_error
from subgraph import Subgraph

from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import export_model, new_graph
from rowpack.surgery.float8_form import Float8Form
from rowpack.surgery.quantized_projections import QuantizeProjections
from rowpack_loaders.errors import RowpackError

FLOAT8 = ml_dtypes.float8_e4m3fn
IN, OUT = 96, 40


def stored_weight(seed: int = 0) -> tuple[Array, Array]:
    """Return eight-bit values ``[out, in]`` and float16 scales ``[out]``."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((OUT, IN)).astype(np.float32) * np.logspace(-2, 1, OUT, dtype=np.float32)[:, None]
    scales = (np.abs(weight).max(axis=1) / 448 * 1.01).astype(np.float16)
    return (weight / scales.astype(np.float32)[:, None]).astype(FLOAT8), scales


def projection(uses: int = 1) -> tuple[Any, QuantizeProjections]:
    """Return a graph with ``uses`` projections of one input, and the pass for them."""
    emitter = Emitter(new_graph("projection"))
    x = emitter.input("x", "float16", ["rows", IN])
    names, scales = [], {}
    for index in range(uses):
        values, row_scales = stored_weight(index)
        weight = emitter.constant(f"weight_{index}", values)
        names.append(weight.name)
        scales[weight.name] = emitter.constant(f"scales_{index}", row_scales)
        out = linear(emitter, x, weight, f"projection_{index}", dtype="float16", shape=["rows", OUT])
        emitter.output(out, f"out_{index}", "float16", ["rows", OUT])
    return emitter.graph, QuantizeProjections(names, Float8Form(scales, "float16"))


def applied(uses: int = 1) -> onnx.ModelProto:
    graph, surgery_pass = projection(uses)
    surgery_pass.check_before(graph)
    surgery_pass.apply(graph)
    surgery_pass.check_after(graph)
    model = export_model(graph.cleanup().toposort())
    onnx.checker.check_model(model, full_check=True)
    return model


def expected(x: Array, values: Array, scales: Array) -> Array:
    """Return the product by its definition, in float64 but for the roundings to eight and sixteen bits."""
    magnitude = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float16(2**-14))
    scale = np.float16(1 / 448)
    rounded = ((x / magnitude).astype(np.float32) / np.float32(scale)).astype(FLOAT8).astype(np.float64) * float(scale)
    weight = values.astype(np.float64) * scales.astype(np.float64)[:, None]
    return rounded @ weight.T * magnitude.astype(np.float64)


def rows(count: int, scale: float = 1.0) -> Array:
    rng = np.random.default_rng(count)
    return (scale * rng.standard_normal((count, IN)) * np.logspace(-3, 2, count)[:, None]).astype(np.float16)


@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_projection_is_its_definition(count: int) -> None:
    graph = Subgraph(applied(), ["out_0"])
    x = rows(count)
    (found,) = graph(x=x)
    for row, wanted in zip(found, expected(x, *stored_weight()), strict=True):
        assert relative_error(row, wanted) <= 2e-3  # half precision keeps eleven bits


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """A scale for a whole chunk would make a token's result depend on where its prompt was cut."""
    graph = Subgraph(applied(), ["out_0"])
    x = rows(8)
    (together,) = graph(x=x)
    alone = np.concatenate([graph(x=row[None])[0] for row in x])
    assert relative_error(together, alone) <= 1e-3
    x[-1] = 6e4
    (beside_a_giant,) = graph(x=x)
    assert np.array_equal(beside_a_giant[:-1], together[:-1])


@pytest.mark.parametrize("value", [0.0, 6e-8, 1e-6])
def test_rows_of_almost_nothing_stay_finite(value: float) -> None:
    x = np.full((2, IN), value, np.float16)
    (found,) = Subgraph(applied(), ["out_0"])(x=x)
    assert np.isfinite(found).all()
    assert np.abs(found.astype(np.float64) - expected(x, *stored_weight())).max() <= 1e-5


def test_an_input_of_several_projections_is_quantised_once() -> None:
    counts = Counter(node.op_type for node in applied(uses=3).graph.node)
    assert counts["QuantizeLinear"] == 1
    assert counts["DequantizeLinear"] == 1 + 3
    assert counts["Gemm"] == 3


def test_a_quantised_weight_read_by_something_else_is_refused() -> None:
    graph, surgery_pass = projection()
    emitter = Emitter(graph)
    weight = graph.nodes[0].inputs[1]
    emitter.output(emitter.op("Identity", [weight], "copy"), "copied", "float8_e4m3fn", [OUT, IN])
    with pytest.raises(RowpackError, match="read by something else"):
        surgery_pass.check_before(graph)


def test_a_projection_left_over_is_refused() -> None:
    graph, surgery_pass = projection()
    with pytest.raises(RowpackError, match="a projection was missed"):
        surgery_pass.check_after(graph)
