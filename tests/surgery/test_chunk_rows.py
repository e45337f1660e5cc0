"""A chunk of free rows computes those that a call has, and a chunk of one size always as many."""

from __future__ import annotations

import onnx
import pytest
from mixer_inputs import Heads, delta_rule_inputs, wkv_inputs
from mixers import delta_rule_chunk_graph, wkv_chunk_graph
from subgraph import Subgraph

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


def test_nothing_is_padded_where_a_row_is_a_block() -> None:
    operators = {node.op_type for node in delta_rule_chunk_graph(HEADS, 64).model.graph.node}
    assert not operators & {"Pad", "Where", "If"}
