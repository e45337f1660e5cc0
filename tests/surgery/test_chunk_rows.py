"""A chunk of free rows computes those that a call has, and a chunk of one size always as many."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from mixer_inputs import Heads, delta_rule_inputs, wkv_inputs
from mixers import delta_rule_chunk_graph, wkv_chunk_graph
from model_engines import ModelEngines
from subgraph import Subgraph

from rowpack.engines import find_backend
from rowpack.surgery import prefill_model
from rowpack.surgery.delta_rule_chunk import MOST_FREE_ROWS
from rowpack.surgery.wkv_chunk import BLOCK_ROWS

HEADS = Heads(2, 1, 16)
CHANNELS = 24
ROWS = (1, 7, 8, 9, 16, 17, 63, 64)


def with_inner_result(graph: Subgraph, name: str) -> Subgraph:
    """Return the model that gives out one inner result, and nothing else."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return Subgraph(model, [name])


@pytest.mark.parametrize("prefill_rows", [48, 64, 128])
def test_the_matrices_of_the_delta_rule_have_the_rows_of_the_call(prefill_rows: int, free_rows: bool) -> None:
    inner = with_inner_result(
        delta_rule_chunk_graph(HEADS, prefill_rows, free_rows=free_rows), "mixer.solve.inverse_of_16"
    )
    for rows in (row for row in ROWS if row <= prefill_rows):
        (inverse,) = inner(**delta_rule_inputs("random", rows, HEADS))
        if free_rows and prefill_rows <= MOST_FREE_ROWS:
            assert inverse.shape == (HEADS.key_heads, 1, rows, rows)
        else:  # diagonal blocks
            blocks, block = {48: (4, 16), 64: (4, 16), 128: (4, 32)}[prefill_rows]
            assert inverse.shape == (HEADS.key_heads, 1, blocks, block, block)


@pytest.mark.parametrize("prefill_rows", [48, 64, 128])
def test_wkv_has_the_blocks_that_the_call_reaches(prefill_rows: int, free_rows: bool) -> None:
    inner = with_inner_result(wkv_chunk_graph(CHANNELS, prefill_rows, free_rows=free_rows), "mixer.row.num_terms")
    positions = with_inner_result(
        wkv_chunk_graph(CHANNELS, prefill_rows, free_rows=free_rows), "mixer.block_start.num_terms"
    )
    all_blocks = max(64, prefill_rows) // BLOCK_ROWS
    for rows in (row for row in ROWS if row <= prefill_rows):
        inputs = wkv_inputs("random", rows, CHANNELS)
        feeds = {"k": inputs.k, "v": inputs.v, "decay": inputs.decay, "bonus": inputs.bonus, **inputs.state._asdict()}
        blocks = -(-rows // BLOCK_ROWS) if free_rows else all_blocks
        assert inner(**feeds)[0].shape == (blocks, BLOCK_ROWS, BLOCK_ROWS + 1, CHANNELS)
        assert positions(**feeds)[0].shape == (blocks + 1, blocks + 1, CHANNELS)


@pytest.mark.parametrize("family", ["qwen3_5", "rwkv"])
def test_a_compiler_of_fixed_shapes_is_given_chunks_of_one_size(
    shipped_engines: Callable[..., ModelEngines], family: str
) -> None:
    """Rows are padded to 64 there and no table is cut; others pad to blocks of WKV, and the delta rule not at all."""
    exported = shipped_engines(family).exported_model
    for backend in ("trt_rtx", "openvino", "ort"):
        nodes = prefill_model(exported, 64, find_backend(backend).graph_form(256, "fp32")).graph.node
        counting = [node for node in nodes if node.name.startswith("chunk_rows.")]
        reached = [node.input[0] for node in counting if node.op_type == "Sub"]
        is_cut = any(node.op_type == "Slice" for node in counting)
        is_padded = any(node.op_type == "Pad" for node in nodes)
        if backend == "trt_rtx":
            assert (reached, is_cut, is_padded) == (["constants.int64.64"], False, True)
        elif family == "rwkv":
            assert (reached, is_cut, is_padded) == (["chunk_rows.computed"], True, True)
        else:
            assert (reached, is_cut, is_padded) == ([], True, False)


def test_nothing_is_padded_where_a_row_is_a_block() -> None:
    operators = {node.op_type for node in delta_rule_chunk_graph(HEADS, 64).model.graph.node}
    assert not operators & {"Pad", "Where", "If"}
