"""The recurrent mixers as models of their own, and the loops that feed them a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from mixer_inputs import Heads, Inputs, WkvInputs
from oracles import WkvState
from subgraph import Shape, Subgraph, called, lowered

from rowpack.onnx_ops import GATED_DELTA_RULE, WKV4
from rowpack.surgery.delta_rule_chunk import DeltaRuleChunk
from rowpack.surgery.delta_rule_row import delta_rule_row
from rowpack.surgery.wkv_chunk import WkvChunk
from rowpack.surgery.wkv_row import wkv_row

Array = np.ndarray[Any, Any]
Declared = dict[str, tuple[str, Shape]]


def delta_rule_tensors(heads: Heads, rows: int | str) -> tuple[Declared, dict[str, Shape]]:
    key_width, value_heads, dim = heads.key_heads * heads.dim, heads.value_heads, heads.dim
    state = (value_heads, dim, dim)
    inputs: Declared = {
        "q": ("float32", (rows, key_width)),
        "k": ("float32", (rows, key_width)),
        "v": ("float32", (rows, value_heads * dim)),
        "decay": ("float32", (rows, value_heads)),
        "beta": ("float32", (rows, value_heads)),
        "state": ("float32", state),
    }
    return inputs, {"out": (rows, value_heads * dim), "present": state}


@cache
def delta_rule_chunk_graph(heads: Heads, prefill_rows: int, *, free_rows: bool = True) -> Subgraph:
    """Return the lowering to chunks of at most ``prefill_rows`` rows."""
    return lowered(DeltaRuleChunk(prefill_rows, free_rows=free_rows), *delta_rule_tensors(heads, "rows"))


@cache
def delta_rule_row_graph(heads: Heads) -> Subgraph:
    """Return the lowering to one row."""
    return lowered(delta_rule_row, *delta_rule_tensors(heads, 1))


@cache
def delta_rule_function(heads: Heads) -> Subgraph:
    """Return a call of the sequential function."""
    return called(GATED_DELTA_RULE, *delta_rule_tensors(heads, "rows"))


def run_delta_rule(graph: Subgraph, inputs: Inputs, cuts: Sequence[int]) -> tuple[Array, Array]:
    """Feed the rows in pieces of ``cuts`` rows; return all outputs and the last state."""
    state, outs, start = inputs["state"], [], 0
    for count in cuts:
        rows = {name: x[start : start + count] for name, x in inputs.items() if name != "state"}
        out, state = graph(**rows, state=state)
        outs.append(out)
        start += count
    assert start == inputs["q"].shape[0]
    return np.concatenate(outs), state


def own_nodes(model: onnx.ModelProto) -> int:
    """Return how many nodes are a mixer's own; what counts rows is there once for all mixers of a graph."""
    return sum(not node.name.startswith("chunk_rows.") for node in model.graph.node)


def grid(rows: int, step: int = 64) -> list[int]:
    """Cut ``rows`` at multiples of ``step``."""
    return [min(step, rows - start) for start in range(0, rows, step)]


def wkv_tensors(channels: int, rows: int | str) -> tuple[Declared, dict[str, Shape]]:
    state = (1, channels)
    inputs: Declared = {
        "k": ("float32", (rows, channels)),
        "v": ("float32", (rows, channels)),
        "decay": ("float32", (channels,)),
        "bonus": ("float32", (channels,)),
        "num": ("float32", state),
        "den": ("float32", state),
        "max": ("float32", state),
    }
    outputs: dict[str, Shape] = {
        "out": (rows, channels),
        "present_num": state,
        "present_den": state,
        "present_max": state,
    }
    return inputs, outputs


@cache
def wkv_chunk_graph(channels: int, prefill_rows: int, *, free_rows: bool = True) -> Subgraph:
    """Return the lowering to chunks of at most ``prefill_rows`` rows."""
    return lowered(WkvChunk(prefill_rows, free_rows=free_rows), *wkv_tensors(channels, "rows"))


@cache
def wkv_row_graph(channels: int) -> Subgraph:
    """Return the lowering to one row."""
    return lowered(wkv_row, *wkv_tensors(channels, 1))


@cache
def wkv_function(channels: int) -> Subgraph:
    """Return a call of the sequential function."""
    return called(WKV4, *wkv_tensors(channels, "rows"))


def run_wkv(graph: Subgraph, inputs: WkvInputs, cuts: Sequence[int]) -> tuple[Array, WkvState]:
    """Feed the rows in pieces of ``cuts`` rows; return all outputs and the last state."""
    state, outs, start = inputs.state, [], 0
    for count in cuts:
        stop = start + count
        out, *present = graph(
            k=inputs.k[start:stop],
            v=inputs.v[start:stop],
            decay=inputs.decay,
            bonus=inputs.bonus,
            **state._asdict(),
        )
        state = WkvState(*present)
        outs.append(out)
        start = stop
    assert start == inputs.k.shape[0]
    return np.concatenate(outs), state
