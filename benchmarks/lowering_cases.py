"""The mixers of a published shape as models of their own: plain subgraphs, fused operators, and fused candidates.

A candidate is an operator that ONNX Runtime has and no build uses; it is here so that the reason can be measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from rowpack.families.normalisation import rms_norm
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.model import export_model, new_graph, serialize
from rowpack.surgery.cached_attention_chunk import cached_attention_chunk
from rowpack.surgery.cached_attention_row import cached_attention_row
from rowpack.surgery.causal_conv import causal_conv_chunk, causal_conv_row
from rowpack.surgery.causal_conv_with_state import causal_conv_with_state
from rowpack.surgery.delta_rule_chunk import DeltaRuleChunk
from rowpack.surgery.delta_rule_geometry import DeltaRuleGeometry
from rowpack.surgery.delta_rule_row import delta_rule_row
from rowpack.surgery.group_query_attention import group_query_attention
from rowpack.surgery.linear_attention import linear_attention
from rowpack.surgery.mixer_replacement import Lowering

Array = np.ndarray[Any, Any]
EPSILON = 1e-6
PLAIN_ROWS = 64


@dataclass(frozen=True)
class LoweringCase:
    """One mixer at one row count: inputs by name, outputs with shapes, and its forms, the plain one first.

    ``rows`` inputs are cut to a call's rows; ``constants`` are weights of the model.
    """

    mixer: str
    rows: int
    inputs: Mapping[str, Array]
    row_inputs: frozenset[str]
    constants: Mapping[str, Array]
    outputs: Mapping[str, Sequence[int | str]]
    forms: Mapping[str, Lowering]
    attributes: Mapping[str, Any]

    def model(self, form: str) -> bytes:
        """Return the model of one form, for the rows of one call."""
        emitter = Emitter(new_graph("lowering"))
        tensors = [
            emitter.constant(name, self.constants[name])
            if name in self.constants
            else emitter.input(name, "float32", self._shape(name))
            for name in [*self.inputs, *self.constants]
        ]
        results = self.forms[form](emitter.scope("mixer"), tensors, dict(self.attributes))
        for tensor, (name, shape) in zip(results, self.outputs.items(), strict=True):
            emitter.output(tensor, name, "float32", shape)
        return serialize(export_model(emitter.graph))

    def _shape(self, name: str) -> list[int | str]:
        if name == "mask":
            return [self._row_extent, "columns"]
        first = self._row_extent if name in self.row_inputs else self.inputs[name].shape[0]
        return (
            [first, *self.inputs[name].shape[1:]]
            if not name.startswith("cache")
            else ["cached", *self.inputs[name].shape[1:]]
        )

    @property
    def _row_extent(self) -> int | str:
        return 1 if self.rows == 1 else "rows"


def lowering_cases(config: Mapping[str, Any], row_counts: Sequence[int], cached_rows: int) -> Iterator[LoweringCase]:
    """Yield every mixer of a Qwen3.5 text config at every row count."""
    for rows in row_counts:
        yield _delta_rule(config, rows)
        yield _convolution(config, rows)
        yield _attention(config, rows, cached_rows)
        yield _gated_norm(config, rows)


def normal(*shape: int) -> Array:
    """Return float32 values of the standard normal distribution, the same for the same shape."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)


def _delta_rule(config: Mapping[str, Any], rows: int) -> LoweringCase:
    key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    keys = normal(rows, key_heads, key)
    unit = (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).reshape(rows, -1)
    inputs = {
        "q": unit[::-1].copy() * np.float32(key**-0.5),
        "k": unit,
        "v": normal(rows, heads * value),
        "decay": -np.exp(normal(rows, heads) - 2),
        "beta": (1 / (1 + np.exp(normal(rows, heads)))).astype(np.float32),
        "state": normal(heads, key, value),
    }
    extent: int | str = 1 if rows == 1 else "rows"
    return LoweringCase(
        "delta rule",
        rows,
        inputs,
        frozenset({"q", "k", "v", "decay", "beta"}),
        {},
        {"out": [extent, heads * value], "present": [heads, key, value]},
        {
            "plain": delta_rule_row if rows == 1 else DeltaRuleChunk(PLAIN_ROWS),
            "LinearAttention": linear_attention,
            "GatedDeltaNet": _gated_delta_net,
        },
        {},
    )


def _convolution(config: Mapping[str, Any], rows: int) -> LoweringCase:
    key_width = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    channels = 2 * key_width + config["linear_num_value_heads"] * config["linear_value_head_dim"]
    columns = config["linear_conv_kernel_dim"]
    extent: int | str = 1 if rows == 1 else "rows"
    return LoweringCase(
        "convolution",
        rows,
        {"x": normal(rows, channels), "state": normal(channels, columns)},
        frozenset({"x"}),
        {"weight": normal(channels, columns)},
        {"out": [extent, channels], "present": [channels, columns]},
        {
            "plain": causal_conv_row if rows == 1 else causal_conv_chunk,
            "CausalConvWithState": causal_conv_with_state,
        },
        {},
    )


def _attention(config: Mapping[str, Any], rows: int, cached_rows: int) -> LoweringCase:
    dim, kv = config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    query = config["num_attention_heads"] * dim
    mask = np.zeros((rows, cached_rows + rows), np.float32)
    mask[:, cached_rows:] = np.triu(np.full((rows, rows), -1e4, np.float32), 1)
    inputs = {
        "q": normal(rows, query),
        "k": normal(rows, kv),
        "v": normal(rows, kv),
        "cache_k": normal(cached_rows, kv),
        "cache_v": normal(cached_rows, kv),
        "mask": mask,
    }
    extent: int | str = 1 if rows == 1 else "rows"
    return LoweringCase(
        f"attention over {cached_rows} rows",
        rows,
        inputs,
        frozenset({"q", "k", "v"}),
        {},
        {"out": [extent, query]},
        {
            "plain": cached_attention_row if rows == 1 else cached_attention_chunk,
            "GroupQueryAttention": group_query_attention,
        },
        {"head_dim": dim},
    )


def _gated_norm(config: Mapping[str, Any], rows: int) -> LoweringCase:
    width = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    extent: int | str = 1 if rows == 1 else "rows"
    return LoweringCase(
        "gated norm",
        rows,
        {"x": normal(rows, width), "gate": normal(rows, width)},
        frozenset({"x", "gate"}),
        {"weight": normal(config["linear_value_head_dim"])},
        {"out": [extent, width]},
        {"plain": _plain_gated_norm, "GatedRMSNorm": _gated_rms_norm},
        {},
    )


def _gated_delta_net(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the operator whose state is value-major: it is turned around before and after."""
    q, k, v, decay, beta, state = inputs
    shape = DeltaRuleGeometry.of(q, state)
    heads = shape.key_heads * shape.group
    turned = emitter.transpose(state, [0, 2, 1], "state_turned")
    out, present = emitter.multi_op(
        "GatedDeltaNet",
        [
            emitter.reshape(q, [-1, shape.key_heads, shape.key_dim], "query_heads"),
            emitter.reshape(k, [-1, shape.key_heads, shape.key_dim], "key_heads"),
            emitter.reshape(v, [-1, heads, shape.value_dim], "value_heads"),
            gs.Variable.empty(),
            decay,
            beta,
            emitter.reshape(turned, [1, heads, shape.value_dim, shape.key_dim], "state_batch"),
        ],
        "gated_delta_net",
        [("out", None, None), ("present", None, None)],
        domain="com.microsoft",
        update_rule="gated_delta",
        scale=1.0,
    )
    by_head = emitter.reshape(present, [heads, shape.value_dim, shape.key_dim], "present_turned")
    return [
        emitter.reshape(out, [-1, heads * shape.value_dim], "out"),
        emitter.transpose(by_head, [0, 2, 1], "present"),
    ]


def _plain_gated_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    x, gate, weight = inputs
    dim, width = int(weight.shape[0]), int(x.shape[1])
    normed = rms_norm(emitter, emitter.reshape(x, [0, width // dim, dim], "heads"), weight, EPSILON)
    rows = emitter.reshape(normed, [0, width], "rows")
    silu = emitter.op("Mul", [gate, emitter.op("Sigmoid", [gate], "gate_sigmoid")], "gate_silu")
    return [emitter.op("Mul", [rows, silu], "gated")]


def _gated_rms_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    x, gate, weight = inputs
    return [
        emitter.op(
            "GatedRMSNorm", [x, weight, gate], "gated", domain="com.microsoft", epsilon=EPSILON, activation="silu"
        )
    ]
