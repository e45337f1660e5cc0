"""The mixers' ONNX functions, run as they are, against the definitions in float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from mixer_inputs import (
    DELTA_RULE_CHANGES,
    RANDOM_BAR,
    WKV_CHANGES,
    Heads,
    bar,
    delta_rule_inputs,
    wkv_inputs,
)
from mixers import delta_rule_function, run_delta_rule, run_wkv, wkv_function
from oracles import (
    WkvState,
    cached_attention,
    causal_conv,
    causal_mask,
    delta_rule,
    relative_error,
    token_shift,
    wkv,
)
from subgraph import Subgraph, called

from rowpack.graph.dtypes import numpy_dtype
from rowpack.graph.model import FUNCTION_DOMAIN, IR_VERSION, OPSET
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, MIXERS, TOKEN_SHIFT, function


@pytest.mark.parametrize("name", MIXERS)
def test_a_function_is_well_formed(name: str) -> None:
    proto = function(name)
    assert (proto.domain, proto.name) == (FUNCTION_DOMAIN, name)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", OPSET)]
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = IR_VERSION, {"": OPSET}
    onnx.checker.check_function(proto, context)


@pytest.mark.parametrize("heads", [Heads(2, 1, 32), Heads(2, 2, 32), Heads(1, 3, 128)], ids=str)
@pytest.mark.parametrize("name", DELTA_RULE_CHANGES)
def test_gated_delta_rule(name: str, heads: Heads) -> None:
    inputs = delta_rule_inputs(name, 130, heads)
    out, state = delta_rule_function(heads)(**inputs)
    expected_out, expected_state = delta_rule(**inputs)
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(state, expected_state) <= bar(name)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_gated_delta_rule_of_short_prompts(rows: int) -> None:
    heads = Heads(2, 2, 32)
    inputs = delta_rule_inputs("random", rows, heads)
    whole = delta_rule_function(heads)(**inputs)
    cut = run_delta_rule(delta_rule_function(heads), inputs, [1] * rows)
    for found, expected in zip(whole, delta_rule(**inputs), strict=True):
        assert relative_error(found, expected) <= RANDOM_BAR
    assert all(map(np.array_equal, whole, cut)), "row by row, so any cut gives the same bits"


@pytest.mark.parametrize("rows", [1, 8, 64, 130])
@pytest.mark.parametrize("name", WKV_CHANGES)
def test_wkv(name: str, rows: int) -> None:
    inputs = wkv_inputs(name, rows)
    out, state = run_wkv(wkv_function(48), inputs, [rows])
    expected_out, expected = wkv(inputs.k, inputs.v, inputs.decay, inputs.bonus, inputs.state)
    wide = WkvState(*(np.float64(part) for part in state))
    scale = max(1.0, np.abs(expected.log_weight).max())
    assert relative_error(out, expected_out) <= bar(name)
    assert relative_error(wide.mean, expected.mean) <= bar(name)
    assert np.abs(wide.log_weight - expected.log_weight).max() <= bar(name) * scale


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 64])
def test_causal_conv_state(rows: int) -> None:
    rng = np.random.default_rng(rows)
    state_shape = (24, 4)
    graph = called(
        CAUSAL_CONV_STATE,
        {"x": ("float32", ("rows", 24)), "state": ("float32", state_shape), "weight": ("float32", state_shape)},
        {"out": ("rows", 24), "present": state_shape},
    )
    x = rng.standard_normal((rows, 24)).astype(np.float32)
    state, weight = rng.standard_normal((2, *state_shape)).astype(np.float32)
    out, present = graph(x=x, state=state, weight=weight)
    expected_out, expected_state = causal_conv(x, state, weight)
    assert relative_error(out, expected_out) <= RANDOM_BAR
    assert np.array_equal(present, expected_state)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_token_shift(rows: int) -> None:
    rng = np.random.default_rng(rows)
    graph = called(
        TOKEN_SHIFT,
        {"x": ("float32", ("rows", 16)), "previous": ("float32", (1, 16))},
        {"shifted": ("rows", 16), "present": (1, 16)},
    )
    x = rng.standard_normal((rows, 16)).astype(np.float32)
    previous = rng.standard_normal((1, 16)).astype(np.float32)
    assert all(map(np.array_equal, graph(x=x, previous=previous), token_shift(x, previous)))


@cache
def attention_function(heads: int, kv_heads: int, dim: int, work: str) -> Subgraph:
    kv = kv_heads * dim
    return called(
        CACHED_ATTENTION,
        {
            "q": ("float32", ("rows", heads * dim)),
            "k": (work, ("rows", kv)),
            "v": (work, ("rows", kv)),
            "cache_k": (work, ("cache_rows", kv)),
            "cache_v": (work, ("cache_rows", kv)),
            "mask": ("float32", ("rows", "cache_rows+rows")),
        },
        {"out": ("rows", heads * dim)},
        head_dim=dim,
    )


@pytest.mark.parametrize("filled", [0, 1, 63, 200])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(2, 2, 32), (4, 2, 64), (6, 2, 32), (3, 3, 128)])
@pytest.mark.parametrize("work", ["float32", "float16"])
def test_cached_attention(work: str, heads: int, kv_heads: int, dim: int, filled: int) -> None:
    rng = np.random.default_rng([heads, filled])
    graph = attention_function(heads, kv_heads, dim, work)
    for rows in (1, 5, 64):
        widths = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
        inputs = {name: rng.standard_normal((rows, width)).astype(np.float32) for name, width in widths.items()}
        for name in ("cache_k", "cache_v"):
            inputs[name] = rng.standard_normal((filled, kv_heads * dim)).astype(np.float32)
        narrowed = {name: x if name == "q" else x.astype(numpy_dtype(work)) for name, x in inputs.items()}
        mask = causal_mask(rows, filled)
        (out,) = graph(**narrowed, mask=mask)
        assert relative_error(out, cached_attention(**narrowed, mask=mask, head_dim=dim)) <= RANDOM_BAR
