"""Projections in NVFP4: the graph that a compiler gets, and the same with plain operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx_graphsurgeon.ir.tensor import LazyValues
from oracles import Array, relative_error
from subgraph import Subgraph

from rowpack.graph.dtypes import stored_values
from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import export_model, new_graph
from rowpack.surgery.float4_form import DYNAMIC_QUANTIZE, GLOBAL_SCALE, TENSORRT_DOMAIN, Float4Form
from rowpack.surgery.float4_in_float32 import FLOAT4_VALUES, Emulation, has_float4, without_float4
from rowpack.surgery.quantized_projections import QuantizeProjections
from rowpack.surgery.surgery_pass import check_plain

FLOAT4, FLOAT8 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn
IN, OUT = 64, 24


def stored_weight() -> tuple[Array, Array, Array]:
    """Return E2M1 values ``[out, in]``, E4M3 scales of blocks, float16 magnitudes of rows."""
    rng = np.random.default_rng(0)
    values = rng.choice([*FLOAT4_VALUES, *(-v for v in FLOAT4_VALUES)], (OUT, IN)).astype(FLOAT4)
    scales = rng.uniform(2, 448, (OUT, IN // 16)).astype(FLOAT8)
    return values, scales, rng.uniform(0.1, 3, OUT).astype(np.float16)


def compiled() -> onnx.ModelProto:
    """Return the graph for a compiler."""
    values, scales, magnitudes = stored_weight()
    emitter = Emitter(new_graph("projection"))
    x = emitter.input("x", "float16", ["rows", IN])
    packed = stored_values(values, "float4_e2m1fn").tobytes()
    proto = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT4E2M1, [OUT, IN], packed, raw=True)
    weight = gs.Constant("weight", LazyValues(proto))
    form = Float4Form(
        {weight.name: emitter.constant("scales", scales)},
        {weight.name: emitter.constant("magnitudes", magnitudes)},
        "float16",
    )
    emitter.output(linear(emitter, x, weight, "projection"), "out", "float16", ["rows", OUT])
    surgery_pass = QuantizeProjections([weight.name], form)
    surgery_pass.check_before(emitter.graph)
    surgery_pass.apply(emitter.graph)
    surgery_pass.check_after(emitter.graph)
    check_plain(emitter.graph)
    return export_model(emitter.graph.cleanup().toposort())


def rounded_rows(x: Array) -> Array:
    """Round rows of [−1, 1] by the definition of the two-level scheme, in NumPy's own types."""
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, 16)
    scales = (np.abs(blocks).max(axis=2) / np.float32(6) / np.float32(GLOBAL_SCALE)).astype(FLOAT8).astype(np.float32)
    steps = (scales * np.float32(GLOBAL_SCALE))[..., None]
    values = np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps > 0)
    return (values.astype(FLOAT4).astype(np.float32) * steps).reshape(x.shape)


def expected(x: Array) -> Array:
    values, scales, magnitudes = (part.astype(np.float64) for part in stored_weight())
    weight = values * np.repeat(scales * GLOBAL_SCALE, 16, axis=1)
    largest = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float16(2**-14))
    return rounded_rows(x / largest).astype(np.float64) @ weight.T * magnitudes * largest.astype(np.float64)


def rows(count: int) -> Array:
    rng = np.random.default_rng(count)
    return (rng.standard_normal((count, IN)) * np.logspace(-3, 2, count)[:, None]).astype(np.float16)


@pytest.fixture(scope="module")
def plain() -> Subgraph:
    model = without_float4(compiled())
    onnx.checker.check_model(model, full_check=True)
    return Subgraph(model, ["out"])


@pytest.mark.parametrize("count", [1, 2, 64])
def test_plain_operators_give_the_definition(plain: Subgraph, count: int) -> None:
    x = rows(count)
    (found,) = plain(x=x)
    errors = [relative_error(row, wanted) for row, wanted in zip(found, expected(x), strict=True)]
    # Half precision keeps eleven bits of scales and sums; a value on the border of two codes may go either way.
    assert np.quantile(errors, 0.95) <= 4e-3
    assert max(errors) <= 0.25


def test_rows_of_nothing_give_nothing(plain: Subgraph) -> None:
    x = np.zeros((2, IN), np.float16)
    x[1, 3] = 1
    (found,) = plain(x=x)
    assert not found[0].any()
    assert np.isfinite(found).all()


def test_the_grid_is_the_types_own() -> None:
    """Every tie between two codes, everything beyond the largest, and values all over the range."""
    emulation = Emulation()
    emulation.to_grid("x", "y")
    values = np.concatenate([np.arange(-8, 8.125, 0.125), np.random.default_rng(0).uniform(-8, 8, 500)])
    x = values.astype(np.float32)
    shape = [x.shape[0]]
    graph = onnx.helper.make_graph(
        emulation.nodes,
        "grid",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        list(emulation.constants.values()),
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    (found,) = Subgraph(model, ["y"])(x=x)
    assert np.array_equal(found, x.astype(FLOAT4).astype(np.float32))


def test_codes_are_packed_as_the_type_stores_them() -> None:
    values = np.array(FLOAT4_VALUES, np.float32).astype(FLOAT4)
    assert stored_values(values, "float4_e2m1fn").tolist() == [0x10, 0x32, 0x54, 0x76]
    assert stored_values(np.array([-0.5, 6.0], np.float32).astype(FLOAT4), "float4_e2m1fn").tolist() == [0x79]


def test_the_compilers_graph_says_all_of_it() -> None:
    model = compiled()
    assert has_float4(model)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 23, TENSORRT_DOMAIN: 1}
    assert model.ir_version == 11
    (quantiser,) = [node for node in model.graph.node if node.op_type == DYNAMIC_QUANTIZE]
    attributes: dict[str, Any] = {entry.name: entry.i for entry in quantiser.attribute}
    assert attributes == {"axis": -1, "block_size": 16, "scale_type": onnx.TensorProto.FLOAT8E4M3FN}
    changed = without_float4(model)
    assert not has_float4(changed)
    assert {entry.domain for entry in changed.opset_import} == {""}
