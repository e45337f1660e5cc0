"""Rows looked up in a table of whole numbers, alone and beside the product that reads the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest

from rowpack.block_quantization import quantize_blocks
from rowpack.graph.dtypes import numpy_dtype, stored_values
from rowpack.graph.emitter import Emitter
from rowpack.graph.linear import linear
from rowpack.graph.model import export_model, import_graph, new_graph
from rowpack.surgery.block_projections import BLOCK_PRODUCT, DequantizeBlocks, MultiplyBlocks
from rowpack.surgery.surgery_pass import check_plain, run_passes
from rowpack_loaders.errors import RowpackError

Array = np.ndarray[Any, Any]
VOCABULARY = 50
CODES = {8: "uint8", 4: "uint4"}
FORMS = {
    "8 bits, blocks of 128": (8, 256, 128),
    "8 bits, blocks of 64": (8, 192, 64),
    "4 bits, blocks of 32": (4, 128, 32),
}
"""Bits, columns of a row, and the columns of a block that they come to."""

forms = pytest.mark.parametrize(("bits", "columns", "block"), FORMS.values(), ids=FORMS)
IDS = np.array([0, 49, 7, 7, 3], np.int32)


class Table:
    """A quantised embedding ``[50, columns]`` in a file, looked up, and multiplied with where it is ``tied``."""

    def __init__(self, folder: Path, bits: int, columns: int, *, tied: bool = False) -> None:
        rng = np.random.default_rng(bits)
        rows = rng.standard_normal((VOCABULARY, columns)).astype(np.float32)
        rows[7] = 0
        rows[49, 5] = 1e4
        self.quantized = quantize_blocks(rows, bits)
        self.folder = folder
        emitter = Emitter(new_graph("table_exported"))
        ids = emitter.input("token_id", "int32", ["rows"])
        parts: dict[str, Any] = {}
        data = b""
        for name, dtype, values in (
            ("table", CODES[bits], self.quantized.codes),
            ("scales", "float32", self.quantized.scales),
            ("zero_points", CODES[bits], self.quantized.zero_points),
        ):
            stored = stored_values(np.ascontiguousarray(values.astype(numpy_dtype(dtype))), dtype).tobytes()
            parts[name] = emitter.external_weight(name, dtype, values.shape, "weights.bin", len(data), len(stored))
            data += stored
        (folder / "weights.bin").write_bytes(data)
        hidden = emitter.op(
            "Gather", [parts["table"], ids], "embedding", axis=0, dtype="float32", shape=["rows", columns]
        )
        emitter.output(hidden, "hidden", "float32", ["rows", columns])
        if tied:
            x = emitter.input("x", "float32", ["rows", columns])
            logits = linear(emitter, x, parts["table"], "head", dtype="float32", shape=["rows", VOCABULARY])
            emitter.output(logits, "logits", "float32", ["rows", VOCABULARY])
        run_passes(emitter.graph, [DequantizeBlocks({"table": parts["scales"]}, {"table": parts["zero_points"]})])
        self.exported = export_model(emitter.graph)

    def engine_graph(self) -> gs.Graph:
        """Return the graph as ONNX Runtime runs it."""
        graph = import_graph(self.exported)
        run_passes(graph, [MultiplyBlocks()])
        return graph

    def run(self, model: onnx.ModelProto, output: str, **inputs: Array) -> Array:
        """Run a model with the table's file beside it."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self.folder))
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result: Array = session.run([output], inputs)[0]
        return result


@forms
def test_looked_up_rows_are_what_the_numbers_stand_for(tmp_path: Path, bits: int, columns: int, block: int) -> None:
    table = Table(tmp_path, bits, columns)
    assert table.quantized.scales.shape == (VOCABULARY, columns // block)
    wanted = table.quantized.dequantized()[IDS]
    assert np.array_equal(table.run(table.exported, "hidden", token_id=IDS), wanted)
    engine = export_model(table.engine_graph())
    assert np.array_equal(table.run(engine, "hidden", token_id=IDS), wanted)
    for count in (1, 64):
        ids = np.arange(count, dtype=np.int32) % VOCABULARY
        assert np.array_equal(table.run(engine, "hidden", token_id=ids), table.quantized.dequantized()[ids])


def test_a_lookup_needs_plain_operators_only(tmp_path: Path) -> None:
    graph = Table(tmp_path, 4, 128).engine_graph()
    check_plain(graph)
    assert "DequantizeLinear" not in {node.op for node in graph.nodes}, "the whole table would be widened"


@forms
def test_a_tied_head_multiplies_the_bytes_that_are_looked_up(
    tmp_path: Path, bits: int, columns: int, block: int
) -> None:
    table = Table(tmp_path, bits, columns, tied=True)
    graph = table.engine_graph()
    check_plain(graph, (BLOCK_PRODUCT,))
    (lookup,) = [node for node in graph.nodes if node.op == "Gather" and node.inputs[0].name == "table"]
    (product,) = [node for node in graph.nodes if node.op == "MatMulNBits"]
    assert product.inputs[1] is lookup.inputs[0]
    engine = export_model(graph)
    names = [tensor.name for tensor in engine.graph.initializer]
    assert len(names) == len(set(names))
    x = np.random.default_rng(3).standard_normal((len(IDS), columns)).astype(np.float32)
    blocks = x.reshape(len(x), -1, block)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    rounded = (np.rint(blocks / step) * step).reshape(x.shape)
    wanted = rounded.astype(np.float64) @ table.quantized.dequantized().astype(np.float64).T
    found = table.run(engine, "logits", token_id=IDS, x=x)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() <= 1e-5
    assert np.array_equal(table.run(engine, "hidden", token_id=IDS, x=x), table.quantized.dequantized()[IDS])


def test_a_lookup_along_another_axis_is_refused(tmp_path: Path) -> None:
    emitter = Emitter(new_graph("table_exported"))
    ids = emitter.input("token_id", "int32", ["rows"])
    table = emitter.external_weight("table", "uint8", (4, 64), "weights.bin", 0, 256)
    emitter.output(emitter.op("Gather", [table, ids], "columns", axis=1), "y", "uint8", [4, "rows"])
    with pytest.raises(RowpackError) as caught:
        run_passes(emitter.graph, [DequantizeBlocks({"table": table}, {"table": table})])
    assert caught.value.code == "surgery_condition"
    assert caught.value.problem.where == "columns"
