"""Products in whole numbers: against float64 products of the rounded rows with what the stored weights stand for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from exact_products import needs_exact_products
from test_block_projections import adversarial_rows, assert_close, rounded

from rowpack.block_quantization import ROW_ZERO_POINT, quantize_rows
from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import export_model, import_graph, new_graph
from rowpack.surgery.block_projections import DequantizeBlocks
from rowpack.surgery.rounded_row_products import ROUNDING_OPSET, MultiplyRoundedRows, row_zero_points
from rowpack.surgery.surgery_pass import run_passes
from rowpack.surgery.unsigned_row_products import with_unsigned_rows
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.runtimes.ort_row_products import multiplies_exactly

Array = np.ndarray[Any, Any]
OUT, COLUMNS = 40, 200


class Table:
    """A weight of whole rows in a file, its product with rows, and a lookup of its rows, as exported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quantized = quantize_rows(adversarial_rows(OUT, COLUMNS))
        emitter = Emitter(new_graph("table_exported"))
        x = emitter.input("x", "float32", ["rows", COLUMNS])
        ids = emitter.input("ids", "int32", ["count"])
        content = b""
        stored = {}
        for name, dtype, values in (
            ("weight", "uint8", self.quantized.codes),
            ("scales", "float32", self.quantized.scales[:, 0]),
        ):
            data = np.ascontiguousarray(values.astype(dtype)).tobytes()
            stored[name] = emitter.external_weight(name, dtype, values.shape, "weights.bin", len(content), len(data))
            content += data
        (folder / "weights.bin").write_bytes(content)
        for index in range(2):
            out = linear(emitter, x, stored["weight"], f"projection_{index}", dtype="float32", shape=["rows", OUT])
            emitter.output(out, f"out_{index}", "float32", ["rows", OUT])
        rows = emitter.op("Gather", [stored["weight"], ids], "lookup", axis=0)
        emitter.output(rows, "looked_up", "float32", ["count", COLUMNS])
        zero_points = row_zero_points(emitter, stored["scales"])
        passes = [DequantizeBlocks({"weight": stored["scales"]}, {"weight": zero_points})]
        run_passes(emitter.graph, passes)
        self.exported = export_model(emitter.graph)

    def engine(self) -> onnx.ModelProto:
        graph = import_graph(self.exported)
        run_passes(graph, [MultiplyRoundedRows()])
        return export_model(graph)

    def run(self, model: onnx.ModelProto, x: Array, ids: Array) -> dict[str, Array]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        folder = str(self.folder)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = ["out_0", "out_1", "looked_up"]
        return dict(zip(names, session.run(names, {"x": x, "ids": ids}), strict=True))

    @property
    def weight(self) -> Array:
        """What the stored numbers stand for, in float64."""
        steps = self.quantized.codes.astype(np.float64) - self.quantized.zero_points
        weight: Array = steps * self.quantized.scales.astype(np.float64)
        return weight


IDS = np.array([3, 0, OUT - 1, 3], np.int32)


@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_exported_form_is_the_product_with_what_is_stored(tmp_path: Path, count: int) -> None:
    table = Table(tmp_path)
    x = adversarial_rows(count, COLUMNS)
    found = table.run(table.exported, x, IDS)
    assert_close(found["out_0"], x.astype(np.float64) @ table.weight.T, x, 1e-5)
    assert np.allclose(found["looked_up"], table.weight[IDS], rtol=1e-6, atol=0)


@needs_exact_products
@pytest.mark.parametrize("count", [1, 5, 31, 64, 66])
def test_an_engine_is_the_product_with_rounded_rows(tmp_path: Path, count: int) -> None:
    """Rows of every kind are rounded with their own scale: a tiny one beside an outlier keeps its digits."""
    table = Table(tmp_path)
    x = adversarial_rows(count, COLUMNS)
    found = table.run(table.engine(), x, IDS)
    wanted = rounded(x, COLUMNS).astype(np.float64) @ table.weight.T
    # A value on the border of two codes may be rounded to either: a 127th of its row's largest.
    assert_close(found["out_0"], wanted, x, 1.2e-2)
    for row, expected, rows in zip(found["out_0"], wanted, x, strict=True):
        scale = np.abs(rows).max() * np.abs(table.weight).max(axis=1)
        assert np.quantile(np.abs(row - expected) / np.maximum(scale, 1e-30), 0.9) <= 2 / 127
    assert np.array_equal(found["out_0"], found["out_1"])
    assert np.allclose(found["looked_up"], table.weight[IDS], rtol=1e-6, atol=0)


@needs_exact_products
def test_sums_of_whole_numbers_are_exact(tmp_path: Path) -> None:
    """Rows that are whole numbers of steps lose nothing: what is left is the rounding of float32."""
    table = Table(tmp_path)
    steps = np.random.default_rng(7).integers(-127, 128, (16, COLUMNS)).astype(np.float32)
    steps[:, 0] = 127
    x = steps * np.float32(0.25)
    found = table.run(table.engine(), x, IDS)["out_0"]
    assert_close(found, x.astype(np.float64) @ table.weight.T, x, 1e-6)


@needs_exact_products
def test_a_row_does_not_depend_on_the_rows_beside_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    engine = table.engine()
    x = adversarial_rows(9, COLUMNS)
    together = table.run(engine, x, IDS)["out_0"]
    for index in range(len(x)):
        assert np.array_equal(table.run(engine, x[index : index + 1], IDS)["out_0"][0], together[index])


@needs_exact_products
@pytest.mark.parametrize("value", [0.0, 1e-38, 3e38])
def test_the_ends_of_the_range_give_numbers(tmp_path: Path, value: float) -> None:
    table = Table(tmp_path)
    x = np.full((2, COLUMNS), value, np.float32)
    x[0, 1:] = 0
    found = table.run(table.engine(), x, IDS)["out_0"]
    assert not np.isnan(found).any()
    if value == 0:
        assert not found.any()


@pytest.mark.parametrize("count", [1, 31, 64])
def test_unsigned_rows_give_the_same_sums_on_every_processor(tmp_path: Path, count: int) -> None:
    table = Table(tmp_path)
    engine = table.engine()
    x = adversarial_rows(count, COLUMNS)
    found = table.run(with_unsigned_rows(engine), x, IDS)
    assert_close(found["out_0"], rounded(x, COLUMNS).astype(np.float64) @ table.weight.T, x, 1.2e-2)
    if multiplies_exactly():
        for name, values in table.run(engine, x, IDS).items():
            np.testing.assert_allclose(found[name], values, rtol=1e-6)


def test_an_engine_has_one_operator_a_product_over_the_same_bytes(tmp_path: Path) -> None:
    """Rows that enter two products are rounded once."""
    table = Table(tmp_path)
    model = table.engine()
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["MatMulIntegerToFloat"] == 2
    assert kinds["QuantizeLinear"] == 1
    assert "DequantizeLinear" not in kinds
    assert "Gemm" not in kinds
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": ROUNDING_OPSET, "com.microsoft": 1}
    before, after = (
        {tensor.name: list(tensor.external_data) for tensor in graph.initializer if tensor.external_data}
        for graph in (table.exported.graph, model.graph)
    )
    assert after == before
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert shapes["weight"] == (OUT, COLUMNS)
    assert shapes["scales"] == (OUT, 1)


def test_rows_are_stored_around_zero() -> None:
    """One zero point for all, the largest magnitude of a row exact, and half a step of error elsewhere."""
    rows = adversarial_rows(OUT, COLUMNS)
    found = quantize_rows(rows)
    assert (found.zero_points == ROW_ZERO_POINT).all()
    assert found.codes.min() >= 1
    assert found.codes.max() <= 255
    restored = found.dequantized()
    largest = np.abs(rows).max(axis=1)
    assert np.allclose(np.abs(restored).max(axis=1), largest, rtol=1e-6)
    assert (np.abs(restored - rows).max(axis=1) <= largest / 127 / 2 * 1.001).all()
    assert not quantize_rows(np.zeros((2, 8), np.float32)).dequantized().any()
    parts = [quantize_rows(rows[:3]).codes, quantize_rows(rows[3:]).codes]
    assert np.array_equal(np.concatenate(parts), found.codes)


def test_a_weight_of_whole_rows_read_by_something_else_is_refused(tmp_path: Path) -> None:
    graph = import_graph(Table(tmp_path).exported)
    emitter = Emitter(graph)
    dequantized = next(node for node in graph.nodes if node.op == "DequantizeLinear")
    emitter.output(emitter.op("Identity", [dequantized.outputs[0]], "copy"), "copied", "float32", [OUT, COLUMNS])
    with pytest.raises(RowpackError, match="something else than one projection"):
        run_passes(graph, [MultiplyRoundedRows()])
