"""Each fused operator of the installed runtime against the float64 definitions: inputs, lengths, cuts, geometries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from mixer_inputs import ADVERSARIAL_BAR, DELTA_RULE_CHANGES, RANDOM_BAR, Heads, bar, delta_rule_inputs
from mixers import delta_rule_tensors, grid, run_delta_rule
from oracles import cached_attention, causal_conv, delta_rule, relative_error
from subgraph import Subgraph, lowered
from test_cached_attention_lowering import FILLED_ROWS, attention_graph, attention_inputs
from test_cached_attention_lowering import GEOMETRIES as ATTENTION_GEOMETRIES
from test_convolution_and_shift_lowering import COLUMNS, WEIGHT, conv_graph, conv_inputs, run_conv

from rowpack.graph.dtypes import numpy_dtype
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.causal_conv_with_state import causal_conv_with_state
from rowpack.surgery.group_query_attention import group_query_attention
from rowpack.surgery.linear_attention import linear_attention

GEOMETRIES = (Heads(2, 1, 32), Heads(1, 3, 32), Heads(2, 2, 32), Heads(1, 1, 128), Heads(1, 2, 128))


@cache
def delta_rule_graph(heads: Heads, rows: int | str) -> Subgraph:
    return lowered(linear_attention, *delta_rule_tensors(heads, rows))


@pytest.mark.parametrize("heads", GEOMETRIES, ids=str)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_linear_attention_equals_the_recurrence(name: str, heads: Heads) -> None:
    """130 rows in chunks that carry the state, in one call, and the first rows one by one."""
    inputs = delta_rule_inputs(name, 130, heads)
    expected_out, expected_state = delta_rule(**inputs)
    for cuts in (grid(130), [130], [63, 1, 66]):
        out, state = run_delta_rule(delta_rule_graph(heads, "rows"), inputs, cuts)
        assert relative_error(out, expected_out) <= bar(name), cuts
        assert relative_error(state, expected_state) <= bar(name), cuts
    first = {key: x if key == "state" else x[:9] for key, x in inputs.items()}
    out, _ = run_delta_rule(delta_rule_graph(heads, 1), first, [1] * 9)
    assert relative_error(out, delta_rule(**first)[0]) <= bar(name)


def test_linear_attention_gives_the_same_bits_however_a_prompt_is_cut() -> None:
    """It goes row by row, so even cuts off the grid change nothing; chunks of plain operators promise less."""
    heads = Heads(2, 2, 32)
    inputs = delta_rule_inputs("random", 70, heads)
    graph = delta_rule_graph(heads, "rows")
    whole = run_delta_rule(graph, inputs, [70])
    for cuts in ([64, 6], [1, 69], [5] * 14):
        cut = run_delta_rule(graph, inputs, cuts)
        assert np.array_equal(whole[0], cut[0]), cuts
        assert np.array_equal(whole[1], cut[1]), cuts


@pytest.mark.parametrize("factor", ["number", "vector"])
def test_the_operator_scales_queries_that_one_number_multiplies(factor: str) -> None:
    """A vector is not its scale: then the product stays in the graph."""
    heads = Heads(2, 2, 32)
    inputs = delta_rule_inputs("random", 20, heads)
    width = inputs["q"].shape[1]
    values = np.float32(0.25) if factor == "number" else np.linspace(0.1, 1.0, width, dtype=np.float32)

    def scaled_first(emitter: Emitter, tensors: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        by = emitter.constant("by", np.asarray(values))
        scaled = emitter.op("Mul", [tensors[0], by], "scaled", dtype="float32", shape=["rows", width])
        return linear_attention(emitter, [scaled, *tensors[1:]], attributes)

    graph = lowered(scaled_first, *delta_rule_tensors(heads, "rows"))
    (operator,) = [node for node in graph.model.graph.node if node.op_type == "LinearAttention"]
    (scale,) = [attribute.f for attribute in operator.attribute if attribute.name == "scale"]
    (product,) = [node for node in graph.model.graph.node if node.op_type == "Mul"]
    is_read = any(product.output[0] in node.input for node in graph.model.graph.node)
    assert (scale, is_read) == ((0.25, False) if factor == "number" else (1.0, True))
    out, _ = run_delta_rule(graph, inputs, [20])
    assert relative_error(out, delta_rule(**{**inputs, "q": values * inputs["q"]})[0]) <= RANDOM_BAR


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e5])
def test_causal_conv_with_state_of_every_length(scale: float) -> None:
    x, state = conv_inputs(130, scale)
    for rows in (1, 2, 3, 4, 5, 63, 64, 65, 130):
        expected_out, expected_state = causal_conv(x[:rows], state, WEIGHT)
        for cuts in (grid(rows), [1] * rows if rows < 10 else [rows]):
            out, present = run_conv(conv_graph(causal_conv_with_state, "rows"), x[:rows], state, cuts)
            assert relative_error(out, expected_out) <= RANDOM_BAR, rows
            assert np.array_equal(present, expected_state), "the state is copied, not computed"
    assert state.shape[1] == COLUMNS


def test_the_oldest_column_of_the_convolution_state_has_no_weight() -> None:
    x, state = conv_inputs(2)
    other = state.copy()
    other[:, 0] = 1e6
    graph = conv_graph(causal_conv_with_state, "rows")
    assert np.array_equal(run_conv(graph, x, state, [2])[0], run_conv(graph, x, other, [2])[0])


@pytest.mark.parametrize("filled", FILLED_ROWS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ATTENTION_GEOMETRIES)
def test_group_query_attention_equals_softmax_attention(heads: int, kv_heads: int, dim: int, filled: int) -> None:
    for rows, declared in ((1, 1), (1, "rows"), (5, "rows"), (64, "rows")):
        graph = attention_graph(group_query_attention, heads, kv_heads, dim, "float32", declared)
        inputs = attention_inputs(rows, filled, heads, kv_heads, dim)
        (out,) = graph(**inputs)
        assert relative_error(out, cached_attention(**inputs, head_dim=dim)) <= RANDOM_BAR, rows


@pytest.mark.parametrize("query_scale", [0.0, 30.0])
def test_group_query_attention_of_flat_and_peaked_scores(query_scale: float) -> None:
    inputs = attention_inputs(7, 40, 4, 2, 64, query_scale)
    (out,) = attention_graph(group_query_attention, 4, 2, 64, "float32", "rows")(**inputs)
    assert relative_error(out, cached_attention(**inputs, head_dim=64)) <= ADVERSARIAL_BAR


def test_group_query_attention_sees_neither_later_rows_nor_masked_ones() -> None:
    graph = attention_graph(group_query_attention, 4, 2, 64, "float32", "rows")
    inputs = attention_inputs(6, 10, 4, 2, 64)
    (before,) = graph(**inputs)
    inputs["k"][4:], inputs["v"][4:] = 5.0, -5.0
    (after,) = graph(**inputs)
    assert np.array_equal(before[:4], after[:4])
    inputs["mask"][:, :3] = -1e4
    (masked,) = graph(**inputs)
    inputs["cache_k"][:3], inputs["cache_v"][:3] = 3.0, 1e3
    (same,) = graph(**inputs)
    assert relative_error(same, masked) <= RANDOM_BAR
    assert relative_error(masked, after) > RANDOM_BAR


@pytest.mark.parametrize("work", ["float16", "bfloat16"])
def test_half_precision_caches_are_widened_before_attention(work: str) -> None:
    inputs = attention_inputs(9, 63, 4, 2, 64)
    exact = cached_attention(**inputs, head_dim=64)
    for name in ("k", "v", "cache_k", "cache_v"):
        inputs[name] = inputs[name].astype(numpy_dtype(work))
    (out,) = attention_graph(group_query_attention, 4, 2, 64, work, "rows")(**inputs)
    assert relative_error(out, exact) <= {"float16": 2e-3, "bfloat16": 2e-2}[work]
