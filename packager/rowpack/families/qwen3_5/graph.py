"""The exported graph of a Qwen3.5 text model for any number of rows, mixers as calls of ONNX functions.

Sources of the equations: transformers 5.17 ``modeling_qwen3_5.py`` and the Gated DeltaNet paper (arXiv:2412.06464).
Residual stream, projections and caches are in the work dtype; norms, gates, decay, convolution, the delta rule,
softmax and all recurrent states are float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rowpack.exact_rounding import power
from rowpack.families.normalisation import rms_norm, unit_norm
from rowpack.families.qwen3_5.config import CONV_COLUMNS, Qwen35Config
from rowpack.families.qwen3_5.tables import HEAD_NAME
from rowpack.graph.activations import silu, softplus
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.last_row import last_row
from rowpack.graph.linear import linear
from rowpack.graph.model import FUNCTION_DOMAIN
from rowpack.graph.rotary import rotate_heads
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE

ROWS = "rows"
CACHE_ROWS = "cache_rows"

L2_EPSILON = 1e-6
"""Added to the squared norm of each key and query, as in the reference's ``l2norm``."""


class Qwen35Graph:
    """Emit one model; ``weights`` maps the bundle's tensor names to graph constants."""

    def __init__(self, config: Qwen35Config, work: str, emitter: Emitter, weights: Mapping[str, Tensor]) -> None:
        self._config = config
        self._work = work
        self._root = emitter
        self._weights = weights
        self._outputs: list[tuple[Tensor, str, str, list[int | str]]] = []

    def emit(self) -> None:
        """Emit the whole model from ``token_id`` to ``logits`` and the present states."""
        config, root = self._config, self._root
        token_id = root.input("token_id", "int32", [ROWS])
        position_id = root.input("position_id", "int32", [ROWS])
        self._mask = root.input("attention_mask", "float32", [ROWS, f"{CACHE_ROWS}+{ROWS}"])
        self._cosine, self._sine = self._rotary_angles(position_id)
        hidden = root.op("Gather", [self._weights["embed_tokens.weight"], token_id], "embed_tokens", axis=0)
        deltanet = attention = 0
        for index, kind in enumerate(config.layer_types):
            layer = root.scope(f"layers.{index}")
            wide, normed = self._norm(layer, hidden, f"layers.{index}.input_norm.weight", "input_norm")
            if kind == "linear_attention":
                mixed = self._deltanet(layer.scope("deltanet"), wide, normed, index, deltanet)
                deltanet += 1
            else:
                mixed = self._attention(layer.scope("attention"), normed, index, attention)
                attention += 1
            if self._is_last(index):
                hidden = self._last_row(layer, hidden, "mixer_residual_row", self._work, config.hidden_size)
            hidden = layer.op("Add", [hidden, mixed], "mixer_residual")
            _, normed = self._norm(layer, hidden, f"layers.{index}.post_norm.weight", "post_norm")
            if self._is_last(index):
                layer.declare(normed, self._work, [1, config.hidden_size])
            hidden = layer.op("Add", [hidden, self._mlp(layer.scope("mlp"), normed, index)], "mlp_residual")
        _, normed = self._norm(root, hidden, "final_norm.weight", "final_norm")
        root.declare(normed, self._work, [1, config.hidden_size])
        head = HEAD_NAME if HEAD_NAME in self._weights else "embed_tokens.weight"
        logits = linear(root, normed, self._weights[head], "lm_head")
        logits = root.cast_if_needed(logits, self._work, "float32", "logits_float32")
        root.output(logits, "logits", "float32", [1, config.vocab_size])
        for tensor, name, dtype, shape in self._outputs:
            root.output(tensor, name, dtype, shape)

    def _is_last(self, index: int) -> bool:
        """Tell whether nothing but the logits is computed behind the mixer of layer ``index``.

        Only the last row goes on from there: over all rows the head alone would cost a quarter of the prompt's time,
        and what is left of the layer about as much as any other layer.
        """
        return index == len(self._config.layer_types) - 1

    def _last_row(self, emitter: Emitter, rows: Tensor, name: str, dtype: str, width: int) -> Tensor:
        return last_row(emitter, rows, name, dtype=dtype, width=width, row_count=ROWS)

    def _norm(self, emitter: Emitter, x: Tensor, weight: str, name: str) -> tuple[Tensor, Tensor]:
        """Emit a zero-centred RMS norm of work-dtype rows; the sum 1 + weight was formed at build.

        Return the normed rows in float32 and in the work dtype.
        """
        wide = emitter.cast_if_needed(x, self._work, "float32", f"{name}_float32")
        normed = rms_norm(emitter, wide, self._weights[weight], self._config.rms_norm_eps, name)
        return normed, emitter.cast_if_needed(normed, "float32", self._work, f"{name}_cast")

    def _mlp(self, emitter: Emitter, x: Tensor, index: int) -> Tensor:
        """Emit down(silu(gate(x)) · up(x))."""
        width = self._config.intermediate_size
        both = linear(emitter, x, self._weights[f"layers.{index}.mlp.gate_up_proj.weight"], "gate_up_proj")
        gate, up = emitter.split(both, [width, width], 1, "gate_up", ["gate", "up"])
        activated = emitter.op("Mul", [silu(emitter, gate, "gate_silu", self._work), up], "activated")
        if self._is_last(index):
            emitter.declare(activated, self._work, [1, width])
        return linear(emitter, activated, self._weights[f"layers.{index}.mlp.down_proj.weight"], "down_proj")

    def _wide_linear(self, emitter: Emitter, x: Tensor, weight: str, name: str) -> Tensor:
        """Emit a projection and its cast to float32."""
        return emitter.cast_if_needed(
            linear(emitter, x, self._weights[weight], name), self._work, "float32", f"{name}_float32"
        )

    # -- Gated DeltaNet -----------------------------------------------------------------------------------------

    def _deltanet(self, emitter: Emitter, wide: Tensor, x: Tensor, index: int, number: int) -> Tensor:
        """Emit one Gated DeltaNet mixer of rows given in float32 and in the work dtype.

        ``number`` counts layers of this kind.
        """
        config = self._config
        prefix = f"layers.{index}.deltanet"
        heads, key_dim = config.linear_num_value_heads, config.linear_key_head_dim
        value_dim = config.linear_value_head_dim
        mixed = self._wide_linear(emitter, x, f"{prefix}.in_proj_qkvz.weight", "in_proj_qkvz")
        qkv, z = emitter.split(
            mixed,
            [config.conv_dim, config.value_width],
            1,
            "qkv_z",
            ["qkv", "z"],
            dtype="float32",
            shapes=[[ROWS, config.conv_dim], [ROWS, config.value_width]],
        )
        beta, decay = self._gates(emitter, wide, prefix)

        conv_shape = [config.conv_dim, CONV_COLUMNS]
        conv_state = self._root.input(f"conv_state_{number}", "float32", conv_shape)
        convolved, conv_present = emitter.multi_op(
            CAUSAL_CONV_STATE,
            [qkv, conv_state, self._weights[f"{prefix}.conv.weight"]],
            "conv",
            [("out", "float32", [ROWS, config.conv_dim]), ("present", "float32", conv_shape)],
            domain=FUNCTION_DOMAIN,
        )
        self._outputs.append((conv_present, f"present_conv_{number}", "float32", [*conv_shape]))
        q, k, v = self._normalised_qkv(emitter, convolved)

        state_shape = [heads, key_dim, value_dim]
        state = self._root.input(f"ssm_state_{number}", "float32", state_shape)
        read, present = emitter.multi_op(
            GATED_DELTA_RULE,
            [q, k, v, decay, beta, state],
            "delta_rule",
            [("out", "float32", [ROWS, config.value_width]), ("present", "float32", state_shape)],
            domain=FUNCTION_DOMAIN,
        )
        self._outputs.append((present, f"present_ssm_{number}", "float32", [*state_shape]))

        by_head = emitter.reshape(read, [-1, heads, value_dim], "read_heads")
        normed = rms_norm(emitter, by_head, self._weights[f"{prefix}.norm.weight"], config.rms_norm_eps)
        rows = emitter.reshape(normed, [0, config.value_width], "normed_rows")
        gated = emitter.op("Mul", [rows, silu(emitter, z, "z_silu", "float32")], "gated")
        return self._projected(emitter, gated, index, config.value_width, f"{prefix}.out_proj")

    def _gates(self, emitter: Emitter, x: Tensor, prefix: str) -> tuple[Tensor, Tensor]:
        """Emit beta = sigmoid(b) and the log decay −exp(A_log) · softplus(a + dt_bias), both ``[rows, heads]``.

        All of it is float32, from the normed rows on: the decay is an exponential.
        """
        heads = self._config.linear_num_value_heads
        shape: list[int | str] = [ROWS, heads]
        both = linear(emitter, x, self._weights[f"{prefix}.in_proj_ba.weight"], "in_proj_ba")
        b, a = emitter.split(both, [heads, heads], 1, "b_a", ["b", "a"])
        beta = emitter.op("Sigmoid", [b], "beta", dtype="float32", shape=shape)
        step = emitter.op("Add", [a, self._weights[f"{prefix}.dt_bias"]], "time_step")
        decay = emitter.op(
            "Mul",
            [softplus(emitter, step, "time_step_softplus"), self._weights[f"{prefix}.decay_rate"]],
            "log_decay",
            dtype="float32",
            shape=shape,
        )
        return beta, decay

    def _normalised_qkv(self, emitter: Emitter, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the convolution's output; give queries and keys unit norm a head, scale queries by key_dim^−½."""
        config = self._config
        key_dim, width = config.linear_key_head_dim, config.key_width
        qk, v = emitter.split(
            convolved,
            [2 * width, config.value_width],
            1,
            "qk_v",
            ["qk", "v"],
            dtype="float32",
            shapes=[[ROWS, 2 * width], [ROWS, config.value_width]],
        )
        count = 2 * config.linear_num_key_heads
        heads = emitter.reshape(qk, [0, count, key_dim], "qk_heads", dtype="float32", out_shape=[ROWS, count, key_dim])
        normed = unit_norm(emitter, heads, L2_EPSILON, "qk_norm")
        rows = emitter.reshape(normed, [0, 2 * width], "qk_rows")
        shapes: list[list[int | str]] = [[ROWS, width], [ROWS, width]]
        q, k = emitter.split(rows, [width, width], 1, "q_k", ["q", "k"], dtype="float32", shapes=shapes)
        scale = emitter.floats("query_scale", key_dim**-0.5, scalar=True)
        return emitter.op("Mul", [q, scale], "q_scaled", dtype="float32", shape=[ROWS, width]), k, v

    # -- attention ----------------------------------------------------------------------------------------------

    def _attention(self, emitter: Emitter, x: Tensor, index: int, number: int) -> Tensor:
        """Emit one gated attention mixer with key and value caches."""
        config = self._config
        prefix = f"layers.{index}.attention"
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        qkv = self._wide_linear(emitter, x, f"{prefix}.qkv_proj.weight", "qkv_proj")
        query_gate, key, value = emitter.split(
            qkv, [2 * config.query_width, config.kv_width, config.kv_width], 1, "qkv", ["q_gate", "k", "v"]
        )
        # The checkpoint interleaves a head's query and its gate.
        by_head = emitter.reshape(query_gate, [0, heads, 2 * dim], "q_gate_heads")
        query, gate = emitter.split(by_head, [dim, dim], 2, "q_gate_split", ["q", "gate"])
        query = rms_norm(emitter, query, self._weights[f"{prefix}.q_norm.weight"], config.rms_norm_eps, "q_norm")
        key = emitter.reshape(key, [0, kv_heads, dim], "k_heads")
        key = rms_norm(emitter, key, self._weights[f"{prefix}.k_norm.weight"], config.rms_norm_eps, "k_norm")
        emitter.declare(query, "float32", [ROWS, heads, dim])
        emitter.declare(key, "float32", [ROWS, kv_heads, dim])
        query = self._rotated(emitter.scope("q_rotary"), query, config.query_width)
        key = self._rotated(emitter.scope("k_rotary"), key, config.kv_width)

        rows_by_kv: list[int | str] = [ROWS, config.kv_width]
        cache_shape: list[int | str] = [CACHE_ROWS, config.kv_width]
        new_rows = []
        for tensor, letter in ((key, "k"), (value, "v")):
            narrow = emitter.cast_if_needed(tensor, "float32", self._work, f"{letter}_cast", shape=rows_by_kv)
            # Attention reads the same tensor that is returned as the new cache row.
            row = emitter.op("Identity", [narrow], f"{letter}_row", dtype=self._work, shape=rows_by_kv)
            cache = self._root.input(f"cache_{letter}_{number}", self._work, cache_shape)
            self._outputs.append((row, f"present_{letter}_{number}", self._work, [*rows_by_kv]))
            new_rows.append((row, cache))
        (key_row, key_cache), (value_row, value_cache) = new_rows
        attended = emitter.op(
            CACHED_ATTENTION,
            [query, key_row, value_row, key_cache, value_cache, self._mask],
            "cached_attention",
            dtype="float32",
            shape=[ROWS, config.query_width],
            domain=FUNCTION_DOMAIN,
            head_dim=dim,
        )
        gate_rows = emitter.reshape(gate, [0, config.query_width], "gate_rows")
        gated = emitter.op("Mul", [attended, emitter.op("Sigmoid", [gate_rows], "gate_sigmoid")], "gated")
        return self._projected(emitter, gated, index, config.query_width, f"{prefix}.o_proj")

    def _projected(self, emitter: Emitter, gated: Tensor, index: int, width: int, weight: str) -> Tensor:
        """Emit the projection at the end of a mixer, of float32 rows: all of them, or the last layer's last one."""
        if self._is_last(index):
            gated = self._last_row(emitter, gated, "gated_row", "float32", width)
        narrow = emitter.cast_if_needed(gated, "float32", self._work, "gated_cast", shape=gated.shape)
        return linear(emitter, narrow, self._weights[f"{weight}.weight"], weight.rpartition(".")[2])

    def _rotary_angles(self, position_id: Tensor) -> tuple[Tensor, Tensor]:
        """Emit cos and sin of position · θ^(−2i/d), each ``[rows, 1, rotary_dim / 2]``.

        Computed from the positions at run time: a table for every position would be 67 MB nobody asked for.
        """
        config = self._config
        emitter = self._root.scope("rotary")
        half = config.rotary_dim // 2
        # The reference forms the powers in float32.
        exponents = np.arange(0, config.rotary_dim, 2, dtype=np.float32) / np.float32(config.rotary_dim)
        powers = power(float(np.float32(config.rope_theta)), exponents)
        frequencies = (np.float32(1.0) / powers).reshape(1, 1, half)
        positions = emitter.cast(position_id, "float32", "position")
        column = emitter.reshape(positions, [-1, 1, 1], "position_column")
        angles = emitter.op("Mul", [column, emitter.constant("rotary.frequencies", frequencies)], "angles")
        return emitter.op("Cos", [angles], "cosine"), emitter.op("Sin", [angles], "sine")

    def _rotated(self, emitter: Emitter, heads: Tensor, width: int) -> Tensor:
        """Rotate the first ``rotary_dim`` of each head (rotate-half inside them); return rows ``[rows, width]``."""
        config = self._config
        joined = rotate_heads(emitter, heads, self._cosine, self._sine, config.rotary_dim // 2, config.head_dim)
        return emitter.reshape(joined, [-1, width], "rows", dtype="float32", out_shape=[ROWS, width])
