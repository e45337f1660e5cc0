"""Attention over filled cache rows, chunk and row, against float64 softmax attention."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mixer_inputs import ADVERSARIAL_BAR, RANDOM_BAR, Array
from oracles import cached_attention, causal_mask, relative_error
from subgraph import Subgraph, lowered

from rowpack.graph.dtypes import numpy_dtype
from rowpack.surgery.cached_attention_chunk import cached_attention_chunk
from rowpack.surgery.cached_attention_row import cached_attention_row

# (query heads, key/value heads, head dimension)
GEOMETRIES = [(2, 2, 32), (4, 2, 64), (6, 2, 32), (8, 1, 32), (3, 3, 128), (8, 2, 256)]
FILLED_ROWS = [0, 1, 63, 200]


@cache
def attention_graph(lowering: Any, heads: int, kv_heads: int, dim: int, work: str, rows: int | str) -> Subgraph:
    kv = kv_heads * dim
    return lowered(
        lowering,
        {
            "q": ("float32", (rows, heads * dim)),
            "k": (work, (rows, kv)),
            "v": (work, (rows, kv)),
            "cache_k": (work, ("cache_rows", kv)),
            "cache_v": (work, ("cache_rows", kv)),
            "mask": ("float32", (rows, f"cache_rows+{rows}")),
        },
        {"out": (rows, heads * dim)},
        head_dim=dim,
    )


def attention_inputs(
    rows: int, filled: int, heads: int, kv_heads: int, dim: int, query_scale: float = 1.0
) -> dict[str, Array]:
    rng = np.random.default_rng([rows, filled, heads])
    kv = kv_heads * dim

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "q": np.float32(query_scale) * normal(rows, heads * dim),
        "k": normal(rows, kv),
        "v": normal(rows, kv),
        "cache_k": normal(filled, kv),
        "cache_v": normal(filled, kv),
        "mask": causal_mask(rows, filled),
    }


@pytest.mark.parametrize("filled", FILLED_ROWS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), GEOMETRIES)
def test_chunk_equals_softmax_attention(heads: int, kv_heads: int, dim: int, filled: int) -> None:
    graph = attention_graph(cached_attention_chunk, heads, kv_heads, dim, "float32", "rows")
    for rows in (1, 2, 5, 64):
        inputs = attention_inputs(rows, filled, heads, kv_heads, dim)
        (out,) = graph(**inputs)
        assert relative_error(out, cached_attention(**inputs, head_dim=dim)) <= RANDOM_BAR, rows


@pytest.mark.parametrize("filled", FILLED_ROWS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), GEOMETRIES)
def test_row_equals_softmax_attention(heads: int, kv_heads: int, dim: int, filled: int) -> None:
    graph = attention_graph(cached_attention_row, heads, kv_heads, dim, "float32", 1)
    inputs = attention_inputs(1, filled, heads, kv_heads, dim)
    (out,) = graph(**inputs)
    assert relative_error(out, cached_attention(**inputs, head_dim=dim)) <= RANDOM_BAR


@pytest.mark.parametrize("query_scale", [0.0, 30.0])
def test_flat_and_peaked_scores(query_scale: float) -> None:
    """Scores that are all equal, and scores of hundreds, where a softmax without its maximum overflows."""
    inputs = attention_inputs(7, 40, 4, 2, 64, query_scale)
    expected = cached_attention(**inputs, head_dim=64)
    (out,) = attention_graph(cached_attention_chunk, 4, 2, 64, "float32", "rows")(**inputs)
    assert relative_error(out, expected) <= ADVERSARIAL_BAR
    last = attention_inputs(1, 40, 4, 2, 64, query_scale)
    (row,) = attention_graph(cached_attention_row, 4, 2, 64, "float32", 1)(**last)
    assert relative_error(row, cached_attention(**last, head_dim=64)) <= ADVERSARIAL_BAR


def test_a_row_does_not_see_later_rows() -> None:
    inputs = attention_inputs(6, 10, 4, 2, 64)
    graph = attention_graph(cached_attention_chunk, 4, 2, 64, "float32", "rows")
    (before,) = graph(**inputs)
    inputs["k"][4:], inputs["v"][4:] = 5.0, -5.0
    (after,) = graph(**inputs)
    assert np.array_equal(before[:4], after[:4])
    assert not np.array_equal(before[4:], after[4:])


@pytest.mark.parametrize("lowering", [cached_attention_chunk, cached_attention_row])
def test_masked_cache_rows_count_for_nothing(lowering: Any) -> None:
    """An engine with a fixed cache masks its unfilled rows with −1e4; whatever finite they hold is not seen."""
    rows = 1 if lowering is cached_attention_row else "rows"
    graph = attention_graph(lowering, 4, 2, 64, "float32", rows)
    inputs = attention_inputs(1, 20, 4, 2, 64)
    inputs["mask"][:, 12:20] = -1e4
    filled = {
        **inputs,
        "cache_k": inputs["cache_k"][:12],
        "cache_v": inputs["cache_v"][:12],
        "mask": np.zeros((1, 13), np.float32),
    }
    inputs["cache_k"][12:], inputs["cache_v"][12:] = 3.0, 1e3
    (out,) = graph(**inputs)
    assert relative_error(out, cached_attention(**filled, head_dim=64)) <= RANDOM_BAR


@pytest.mark.parametrize("filled", [0, 63])
@pytest.mark.parametrize("work", ["float16", "bfloat16"])
def test_half_precision_caches_are_widened_exactly(work: str, filled: int) -> None:
    """Keys and values arrive in the work dtype; the arithmetic is float32, so only their rounding is lost."""
    rounding = {"float16": 2e-3, "bfloat16": 2e-2}[work]
    for lowering, rows in ((cached_attention_chunk, 9), (cached_attention_row, 1)):
        inputs = attention_inputs(rows, filled, 4, 2, 64)
        exact = cached_attention(**inputs, head_dim=64)
        for name in ("k", "v", "cache_k", "cache_v"):
            inputs[name] = inputs[name].astype(numpy_dtype(work))
        graph = attention_graph(lowering, 4, 2, 64, work, rows if lowering is cached_attention_row else "rows")
        (out,) = graph(**inputs)
        widened = {name: np.asarray(x).astype(np.float32) for name, x in inputs.items()}
        assert relative_error(out, cached_attention(**widened, head_dim=64)) <= RANDOM_BAR
        assert relative_error(out, exact) <= rounding


def test_bfloat16_arrays_are_handed_over_by_their_bits() -> None:
    assert np.array([1.5]).astype(ml_dtypes.bfloat16).view(np.uint16)[0] == 0x3FC0
