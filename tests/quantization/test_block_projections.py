"""Products with weights in blocks: both forms against float64, and what the passes refuse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rowpack.block_quantization import quantize_blocks
from rowpack.graph.dtypes import numpy_dtype, stored_values
from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import OPSET, export_model, import_graph, new_graph
from rowpack.surgery.block_projections import DequantizeBlocks, MultiplyBlocks, WidenLookups
from rowpack.surgery.eight_bit_rows import RoundRows
from rowpack.surgery.projection_form import WeightOnTheLeft
from rowpack.surgery.surgery_pass import run_passes
from rowpack_loaders.errors import RowpackError

Array = np.ndarray[Any, Any]
OUT = 40
CODES = {8: "uint8", 4: "uint4"}
FORMS = {
    "8 bits, blocks of 128": (8, 256, 128),
    "8 bits, blocks of 64": (8, 192, 64),
    "4 bits, blocks of 32": (4, 192, 32),
}
"""Bits, columns of a row, and the columns of a block that they come to."""

forms = pytest.mark.parametrize(("bits", "columns", "block"), FORMS.values(), ids=FORMS)


def adversarial_rows(count: int, columns: int) -> Array:
    """Rows of every kind: random, one outlier, all zero, constant, tiny, alternating."""
    rng = np.random.default_rng(count)
    rows = rng.standard_normal((count, columns)).astype(np.float32)
    kinds = [rows[0], np.zeros(columns), np.ones(columns), 1e-6 * rows[0], np.tile([1.0, -1.0], columns // 2)]
    for index in range(count):
        rows[index] = kinds[index % len(kinds)] if index % 2 else rows[index]
    rows[-1, 7] = 1e4
    return rows


class Projection:
    """A weight in blocks in a file, and the exported graph of its product with rows."""

    def __init__(self, folder: Path, bits: int, columns: int = 192) -> None:
        self.quantized = quantize_blocks(adversarial_rows(OUT, columns), bits)
        self.folder = folder
        self._emitter = Emitter(new_graph("projection_exported"))
        dtype = CODES[bits]
        x = self._emitter.input("x", "float32", ["rows", columns])
        self._bytes = b""
        weight = self._stored("weight", dtype, self.quantized.codes)
        scales = self._stored("scales", "float32", self.quantized.scales)
        zero_points = self._stored("zero_points", dtype, self.quantized.zero_points)
        out = linear(self._emitter, x, weight, "projection", dtype="float32", shape=["rows", OUT])
        self._emitter.output(out, "out_0", "float32", ["rows", OUT])
        (folder / "weights.bin").write_bytes(self._bytes)
        run_passes(self._emitter.graph, [DequantizeBlocks({"weight": scales}, {"weight": zero_points})])
        self.exported = export_model(self._emitter.graph)

    def _stored(self, name: str, dtype: str, values: Array) -> Any:
        data = stored_values(np.ascontiguousarray(values.astype(numpy_dtype(dtype))), dtype).tobytes()
        offset, self._bytes = len(self._bytes), self._bytes + data
        return self._emitter.external_weight(name, dtype, values.shape, "weights.bin", offset, len(data))

    def engine(self) -> onnx.ModelProto:
        graph = import_graph(self.exported)
        run_passes(graph, [MultiplyBlocks()])
        return export_model(graph)

    def run(self, model: onnx.ModelProto, x: Array) -> Array:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        folder = str(self.folder)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result: Array = session.run(["out_0"], {"x": x})[0]
        return result

    def product(self, x: Array) -> Array:
        """The product in float64 of the dequantised weights."""
        codes = self.quantized.codes.astype(np.float64).reshape(*self.quantized.scales.shape, -1)
        steps = codes - self.quantized.zero_points[..., None]
        weight = steps * self.quantized.scales.astype(np.float64)[..., None]
        result: Array = x.astype(np.float64) @ weight.reshape(OUT, -1).T
        return result


def rounded(x: Array, block: int) -> Array:
    """Round each block of each row to eight bits, by the definition of the operator."""
    blocks = x.reshape(len(x), -1, block)
    scale = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), np.float32(1e-30)) / np.float32(127)
    result: Array = (np.rint(blocks / scale) * scale).reshape(x.shape)
    return result


def assert_close(found: Array, wanted: Array, x: Array, bar: float) -> None:
    """Compare with what the sums are made of: the largest magnitudes, not the results, which may cancel."""
    scale = np.abs(x).max(axis=1, keepdims=True).astype(np.float64) + 1e-30
    assert np.isfinite(found).all()
    assert (np.abs(found - wanted) / scale / max(np.abs(wanted / scale).max(), 1e-30)).max() <= bar


@forms
@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_exported_form_is_the_product_with_the_dequantised_weights(
    tmp_path: Path, bits: int, columns: int, block: int, count: int
) -> None:
    projection = Projection(tmp_path, bits, columns)
    (dequantized,) = [node for node in projection.exported.graph.node if node.op_type == "DequantizeLinear"]
    assert {entry.name: entry.i for entry in dequantized.attribute} == {"axis": 1, "block_size": block}
    onnx.save(projection.exported, tmp_path / "exported.onnx")
    onnx.checker.check_model(str(tmp_path / "exported.onnx"))
    x = adversarial_rows(count, columns)
    assert_close(projection.run(projection.exported, x), projection.product(x), x, 1e-5)


@forms
@pytest.mark.parametrize("count", [1, 5, 64])
def test_an_engine_is_the_product_with_rounded_rows(
    tmp_path: Path, bits: int, columns: int, block: int, count: int
) -> None:
    projection = Projection(tmp_path, bits, columns)
    x = adversarial_rows(count, columns)
    found = projection.run(projection.engine(), x)
    # A value on the border of two codes may be rounded to either: a 127th of its block's largest.
    assert_close(found, projection.product(rounded(x, block)), x, 6e-3)
    assert np.quantile(np.abs(found - projection.product(rounded(x, block))), 0.9) <= 1e-4 * np.abs(found).max()
    assert_close(found, projection.product(x), x, 2e-2)


@forms
def test_an_engine_has_one_operator_over_the_same_bytes(tmp_path: Path, bits: int, columns: int, block: int) -> None:
    projection = Projection(tmp_path, bits, columns)
    model = projection.engine()
    assert Counter(node.op_type for node in model.graph.node) == {"MatMulNBits": 1}
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": OPSET, "com.microsoft": 1}
    sizes = {entry.name: entry.i for entry in model.graph.node[0].attribute}
    assert sizes == {"K": columns, "N": OUT, "bits": bits, "block_size": block, "accuracy_level": 4}
    before = {tensor.name: tensor.external_data for tensor in projection.exported.graph.initializer}
    for tensor in model.graph.initializer:
        assert tensor.external_data == before[tensor.name]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    assert shapes["weight"] == (OUT, columns // block, block * bits // 8)
    assert shapes["scales"] == (OUT, columns // block)
    assert shapes["zero_points"] == (OUT, columns // block * bits // 8)


def test_rows_of_the_reference_are_rounded_as_the_operator_rounds() -> None:
    """In the blocks of each product: one of the same rows rounds them in others, and one does not round."""
    columns = 256
    blocks = {"first": 128, "second": 32, "third": 128, "plain": 0}
    emitter = Emitter(new_graph("reference"))
    x = emitter.input("x", "float32", ["rows", columns])
    weights = {name: emitter.constant(f"{name}.weight", np.eye(columns, dtype=np.float32)) for name in blocks}
    for name, weight in weights.items():
        emitter.output(linear(emitter, x, weight, f"{name}_projection"), name, "float32", ["rows", columns])
    run_passes(emitter.graph, [RoundRows({weights[name].name: block for name, block in blocks.items() if block})])
    roundings = Counter(node.op for node in emitter.graph.nodes)["Round"]
    assert roundings == 2, "products with blocks alike share their rows"
    model = export_model(emitter.graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = adversarial_rows(12, columns)
    found = dict(zip(blocks, session.run(list(blocks), {"x": rows}), strict=True))
    for name, block in blocks.items():
        assert np.allclose(found[name], rounded(rows, block) if block else rows, rtol=1e-6, atol=1e-30)
    assert not np.allclose(found["first"], found["second"], rtol=1e-6, atol=1e-30)


def test_a_weight_to_round_for_that_nothing_multiplies_is_refused() -> None:
    emitter = Emitter(new_graph("reference"))
    row = emitter.input("row", "float32", [1, 64])
    emitter.output(emitter.op("Identity", [row], "copy"), "copied", "float32", [1, 64])
    with pytest.raises(RowpackError, match="read by no projection"):
        run_passes(emitter.graph, [RoundRows({"absent.weight": 64})])


def test_nothing_is_left_that_a_session_would_pack(tmp_path: Path) -> None:
    """A Gemm's weight would be copied at load: in graphs with blocks it is the left operand, also for a single row."""
    projection = Projection(tmp_path, 8)
    graph = import_graph(projection.engine())
    emitter = Emitter(graph)
    row = emitter.input("row", "float32", [1, 192])
    weight = emitter.constant("gate", np.zeros((4, 192), np.float32))
    emitter.output(linear(emitter, row, weight, "gate_projection"), "gates", "float32", [1, 4])
    run_passes(graph, [WeightOnTheLeft(beside="MatMulNBits")])
    assert "Gemm" not in {node.op for node in graph.nodes}
    (product,) = [node for node in graph.nodes if node.op == "MatMul"]
    assert product.inputs[0].name == weight.name


def test_graphs_without_blocks_stay_as_they_are() -> None:
    emitter = Emitter(new_graph("plain"))
    row = emitter.input("row", "float32", [1, 192])
    weight = emitter.constant("gate", np.zeros((4, 192), np.float32))
    emitter.output(linear(emitter, row, weight, "gate_projection"), "gates", "float32", [1, 4])
    run_passes(emitter.graph, [MultiplyBlocks(), WeightOnTheLeft(beside="MatMulNBits")])
    assert [node.op for node in emitter.graph.nodes] == ["Gemm"]


def test_a_weight_in_blocks_read_by_something_else_is_refused(tmp_path: Path) -> None:
    projection = Projection(tmp_path, 8)
    graph = import_graph(projection.exported)
    emitter = Emitter(graph)
    (dequantized,) = [node for node in graph.nodes if node.op == "DequantizeLinear"]
    emitter.output(emitter.op("Identity", [dequantized.outputs[0]], "copy"), "copied", "float32", [OUT, 192])
    with pytest.raises(RowpackError, match="something else than one projection"):
        run_passes(graph, [MultiplyBlocks()])


def test_looked_up_rows_are_widened_once_they_are_there() -> None:
    emitter = Emitter(new_graph("lookup"))
    index = emitter.input("index", "int32", ["rows"])
    table = emitter.constant("table", np.arange(12, dtype=np.float16).reshape(6, 2))
    out = emitter.op("Gather", [table, index], "lookup", axis=0)
    emitter.output(out, "out_0", "float32", ["rows", 2])
    run_passes(emitter.graph, [WidenLookups(frozenset([table.name]))])
    model = export_model(emitter.graph)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"index": np.array([4, 0], np.int32)})
    assert found.dtype == np.float32
    assert found.tolist() == [[8, 9], [0, 1]]


def test_a_narrow_table_that_is_multiplied_is_refused() -> None:
    emitter = Emitter(new_graph("tied"))
    x = emitter.input("x", "float16", ["rows", 2])
    table = emitter.constant("table", np.zeros((6, 2), np.float16))
    emitter.output(linear(emitter, x, table, "head"), "out_0", "float16", ["rows", 6])
    with pytest.raises(RowpackError, match="something else than a lookup"):
        run_passes(emitter.graph, [WidenLookups(frozenset([table.name]))])
