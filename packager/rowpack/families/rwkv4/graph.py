"""The exported graph of an RWKV-4 model for any number of rows, mixers as calls of ONNX functions.

Sources of the equations: transformers 5.17 ``modeling_rwkv.py`` and the RWKV-4 paper (arXiv:2305.13048).
Residual stream and projections are in the work dtype; norms, mixing, WKV and all states are float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from rowpack.families.rwkv4.config import Rwkv4Config
from rowpack.families.rwkv4.tables import HEAD_NAME
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.last_row import last_row
from rowpack.graph.linear import linear
from rowpack.graph.model import FUNCTION_DOMAIN
from rowpack.onnx_ops import TOKEN_SHIFT, WKV4

ROWS = "rows"


class Rwkv4Graph:
    """Emit one model; ``weights`` maps the bundle's tensor names to graph constants."""

    def __init__(self, config: Rwkv4Config, work: str, emitter: Emitter, weights: Mapping[str, Tensor]) -> None:
        self._config = config
        self._work = work
        self._root = emitter
        self._weights = weights
        self._outputs: list[tuple[Tensor, str]] = []

    def emit(self) -> None:
        """Emit the whole model from ``token_id`` to ``logits`` and the present states."""
        config, root = self._config, self._root
        token_id = root.input("token_id", "int32", [ROWS])
        hidden = root.op("Gather", [self._weights["embeddings.weight"], token_id], "embeddings", axis=0)
        normed = self._layer_norm(root, hidden, "pre_norm", "pre_norm")
        hidden = root.cast_if_needed(normed, "float32", self._work, "pre_norm_cast")
        for block in range(config.num_hidden_layers):
            layer = root.scope(f"layers.{block}")
            mixed = self._time_mixing(layer, hidden, block)
            hidden = layer.op("Add", [hidden, mixed], "time_residual")
            mixed = self._channel_mixing(layer, hidden, block)
            if self._is_last(block):
                hidden = self._last_row(layer, hidden, "channel_residual_row", self._work)
            hidden = layer.op("Add", [hidden, mixed], "channel_residual")
            if config.halves_after(block):
                half = layer.floats("half", 0.5, scalar=True)
                half = layer.cast_if_needed(half, "float32", self._work, "half_cast")
                hidden = layer.op("Mul", [hidden, half], "halved")
        normed = self._layer_norm(root, hidden, "final_norm", "final_norm", rows=1)
        narrow = root.cast_if_needed(normed, "float32", self._work, "final_norm_cast")
        root.declare(narrow, self._work, [1, config.hidden_size])
        head = self._weights[HEAD_NAME if HEAD_NAME in self._weights else "embeddings.weight"]
        logits = root.cast_if_needed(linear(root, narrow, head, "head"), self._work, "float32", "logits_float32")
        root.output(logits, "logits", "float32", [1, config.vocab_size])
        for tensor, name in self._outputs:
            root.output(tensor, name, "float32", [1, config.hidden_size])

    def _is_last(self, block: int) -> bool:
        """Tell whether nothing but the logits is computed behind the channel mixing's token shift in ``block``.

        Only the last row goes on from there.
        """
        return block == self._config.num_hidden_layers - 1

    def _last_row(self, emitter: Emitter, rows: Tensor, name: str, dtype: str) -> Tensor:
        return last_row(emitter, rows, name, dtype=dtype, width=self._config.hidden_size, row_count=ROWS)

    def _layer_norm(self, emitter: Emitter, x: Tensor, weights: str, name: str, *, rows: int | str = ROWS) -> Tensor:
        """Emit a layer norm of work-dtype rows; the result is float32 ``[rows, hidden]``."""
        wide = emitter.cast_if_needed(x, self._work, "float32", f"{name}_float32")
        return emitter.op(
            "LayerNormalization",
            [wide, self._weights[f"{weights}.weight"], self._weights[f"{weights}.bias"]],
            name,
            dtype="float32",
            shape=[rows, self._config.hidden_size],
            axis=-1,
            epsilon=self._config.layer_norm_epsilon,
        )

    def _state(self, name: str) -> Tensor:
        return self._root.input(name, "float32", [1, self._config.hidden_size])

    def _shifted(self, emitter: Emitter, x: Tensor, word: str, block: int) -> tuple[Tensor, Tensor]:
        """Emit the token shift of ``x``; return (shifted − x, x) ready for mixing and keep the new state."""
        hidden = self._config.hidden_size
        shifted, present = emitter.multi_op(
            TOKEN_SHIFT,
            [x, self._state(f"{word}_state_{block}")],
            "token_shift",
            [("out", "float32", [ROWS, hidden]), ("present", "float32", [1, hidden])],
            domain=FUNCTION_DOMAIN,
        )
        self._outputs.append((present, f"present_{word}_{block}"))
        return shifted, emitter.op("Sub", [x, shifted], "row_difference")

    def _mixed(
        self, emitter: Emitter, shifted: Tensor, difference: Tensor, scope: str, word: str, *, rows: int | str = ROWS
    ) -> Tensor:
        """Emit x · mix + previous · (1 − mix), written as previous + mix · (x − previous), in the work dtype."""
        shape = [rows, self._config.hidden_size]
        weighted = emitter.op("Mul", [difference, self._weights[f"{scope}.mix_{word}"]], f"{word}_weighted")
        mixed = emitter.op("Add", [shifted, weighted], f"{word}_mixed", dtype="float32", shape=shape)
        return emitter.cast_if_needed(mixed, "float32", self._work, f"{word}_mixed_cast", shape=shape)

    def _time_mixing(self, layer: Emitter, hidden: Tensor, block: int) -> Tensor:
        """Emit output(sigmoid(receptance) · WKV(key, value))."""
        scope = f"layers.{block}.time_mixing"
        emitter = layer.scope("time_mixing")
        normed = self._layer_norm(layer, hidden, f"layers.{block}.time_norm", "time_norm")
        shifted, difference = self._shifted(emitter, normed, "attn", block)
        width: list[int | str] = [ROWS, self._config.hidden_size]
        projected = {}
        for word in ("key", "value", "receptance"):
            mixed = self._mixed(emitter, shifted, difference, scope, word)
            product = linear(
                emitter, mixed, self._weights[f"{scope}.{word}.weight"], word, dtype=self._work, shape=width
            )
            projected[word] = emitter.cast_if_needed(product, self._work, "float32", f"{word}_float32", shape=width)
        states = [self._state(f"{word}_state_{block}") for word in ("num", "den", "max")]
        row: list[int | str] = [1, self._config.hidden_size]
        out, *present = emitter.multi_op(
            WKV4,
            [
                projected["key"],
                projected["value"],
                self._weights[f"{scope}.decay"],
                self._weights[f"{scope}.bonus"],
                *states,
            ],
            "wkv",
            [
                ("out", "float32", width),
                ("num", "float32", row),
                ("den", "float32", row),
                ("max", "float32", row),
            ],
            domain=FUNCTION_DOMAIN,
        )
        for tensor, word in zip(present, ("num", "den", "max"), strict=True):
            self._outputs.append((tensor, f"present_{word}_{block}"))
        receptance = emitter.op("Sigmoid", [projected["receptance"]], "receptance_sigmoid")
        gated = emitter.op("Mul", [receptance, out], "gated")
        narrow = emitter.cast_if_needed(gated, "float32", self._work, "gated_cast")
        return linear(emitter, narrow, self._weights[f"{scope}.output.weight"], "output")

    def _channel_mixing(self, layer: Emitter, hidden: Tensor, block: int) -> Tensor:
        """Emit sigmoid(receptance) · value(relu(key)²)."""
        scope = f"layers.{block}.channel_mixing"
        emitter = layer.scope("channel_mixing")
        normed = self._layer_norm(layer, hidden, f"layers.{block}.channel_norm", "channel_norm")
        shifted, difference = self._shifted(emitter, normed, "ff", block)
        rows: int | str = ROWS
        if self._is_last(block):
            rows = 1
            shifted = self._last_row(emitter, shifted, "shifted_row", "float32")
            difference = self._last_row(emitter, difference, "row_difference_row", "float32")
        mixed = {
            word: self._mixed(emitter, shifted, difference, scope, word, rows=rows) for word in ("key", "receptance")
        }
        key = linear(emitter, mixed["key"], self._weights[f"{scope}.key.weight"], "key")
        positive = emitter.op("Relu", [key], "key_relu")
        shape = [rows, self._config.intermediate_size]
        squared = emitter.op("Mul", [positive, positive], "key_squared", dtype=self._work, shape=shape)
        value = linear(emitter, squared, self._weights[f"{scope}.value.weight"], "value")
        receptance = linear(emitter, mixed["receptance"], self._weights[f"{scope}.receptance.weight"], "receptance")
        gate = emitter.op("Sigmoid", [receptance], "receptance_sigmoid")
        return emitter.op("Mul", [gate, value], "gated")
