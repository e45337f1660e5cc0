"""Weight and state tables of RWKV-4."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rowpack.families.declaration import StateSpec, Transform, WeightSource, WeightSpec
from rowpack.families.rwkv4.config import Rwkv4Config
from rowpack.families.transforms import negative_exponential

MAX_START = -1e38
"""Start value of the running maximum, as in the reference; the graph is also right from zeroed buffers."""


HEAD_NAME = "head.weight"
"""The output projection's tensor; a model whose head is tied to the embedding has none unless it is quantised."""


def flatten_mix(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a mixing vector ``[1, 1, hidden]`` as ``[1, hidden]``."""
    return values.reshape(1, values.shape[-1])


def divide_by_power_of_two(exponent: int) -> Transform | None:
    """Return the division of the reference's rescaling (exact in every float type), or None for 2^0."""
    if exponent == 0:
        return None
    factor = np.float32(2.0**-exponent)

    def divided(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return values * factor

    return divided


def weight_table(config: Rwkv4Config, work: str) -> tuple[WeightSpec, ...]:
    """Return every tensor of the bundle; ``work`` is the element type of the projections."""
    hidden, vocab = config.hidden_size, config.vocab_size
    table = [replace(_matrix("embeddings.weight", work, vocab, hidden, "rwkv.embeddings.weight"), part="embedding")]
    table.extend(_layer_norm("pre_norm", hidden, "rwkv.blocks.0.pre_ln"))
    for block in range(config.num_hidden_layers):
        table.extend(_block(config, work, block))
    table.extend(_layer_norm("final_norm", hidden, "rwkv.ln_out"))
    if not config.tied:
        table.append(replace(_matrix(HEAD_NAME, work, vocab, hidden, "head.weight"), part="head"))
    return tuple(table)


def state_table(config: Rwkv4Config) -> tuple[StateSpec, ...]:
    """Return the five states of every block, all float32 ``[1, hidden]``."""
    kinds = (
        ("shift", "attn", 0.0),
        ("shift", "ff", 0.0),
        ("wkv_num", "num", 0.0),
        ("wkv_den", "den", 0.0),
        ("wkv_max", "max", MAX_START),
    )
    return tuple(
        StateSpec(
            role,
            block,
            f"{word}_state_{block}",
            f"present_{word}_{block}",
            "float32",
            (1, config.hidden_size),
            "row",
            initial_value=start,
        )
        for block in range(config.num_hidden_layers)
        for role, word, start in kinds
    )


def _block(config: Rwkv4Config, work: str, block: int) -> list[WeightSpec]:
    hidden, ffn = config.hidden_size, config.intermediate_size
    layer, stored = f"layers.{block}", f"rwkv.blocks.{block}"
    rescale = divide_by_power_of_two(config.rescale_exponent(block))
    attention, feed_forward = f"{stored}.attention", f"{stored}.feed_forward"
    table = [
        *_layer_norm(f"{layer}.time_norm", hidden, f"{stored}.ln1"),
        *(_mix(f"{layer}.time_mixing", hidden, attention, word) for word in ("key", "value", "receptance")),
        _vector(f"{layer}.time_mixing.decay", hidden, f"{attention}.time_decay", negative_exponential),
        _vector(f"{layer}.time_mixing.bonus", hidden, f"{attention}.time_first"),
        *(
            _matrix(
                f"{layer}.time_mixing.{word}.weight",
                work,
                hidden,
                hidden,
                f"{attention}.{word}.weight",
                quantizable=word != "receptance",
            )
            for word in ("key", "value", "receptance")
        ),
        _matrix(
            f"{layer}.time_mixing.output.weight",
            work,
            hidden,
            hidden,
            f"{attention}.output.weight",
            rescale,
            quantizable=True,
        ),
        *_layer_norm(f"{layer}.channel_norm", hidden, f"{stored}.ln2"),
        *(_mix(f"{layer}.channel_mixing", hidden, feed_forward, word) for word in ("key", "receptance")),
        _matrix(
            f"{layer}.channel_mixing.key.weight",
            work,
            ffn,
            hidden,
            f"{feed_forward}.key.weight",
            quantizable=True,
        ),
        _matrix(
            f"{layer}.channel_mixing.receptance.weight",
            work,
            hidden,
            hidden,
            f"{feed_forward}.receptance.weight",
        ),
        _matrix(
            f"{layer}.channel_mixing.value.weight",
            work,
            hidden,
            ffn,
            f"{feed_forward}.value.weight",
            rescale,
            quantizable=True,
        ),
    ]
    return table


def _matrix(
    name: str,
    dtype: str,
    rows: int,
    columns: int,
    source: str,
    transform: Transform | None = None,
    *,
    quantizable: bool = False,
) -> WeightSpec:
    """Declare a projection ``[out, in]``; those that make gates (receptance) are not quantizable."""
    shape = (rows, columns)
    return WeightSpec(name, dtype, shape, (WeightSource(source, shape),), transform, quantizable)


def _vector(name: str, hidden: int, source: str, transform: Transform | None = None) -> WeightSpec:
    return WeightSpec(name, "float32", (hidden,), (WeightSource(source, (hidden,)),), transform)


def _mix(scope: str, hidden: int, stored: str, word: str) -> WeightSpec:
    source = WeightSource(f"{stored}.time_mix_{word}", (1, 1, hidden))
    return WeightSpec(f"{scope}.mix_{word}", "float32", (1, hidden), (source,), flatten_mix)


def _layer_norm(name: str, hidden: int, stored: str) -> list[WeightSpec]:
    return [_vector(f"{name}.{part}", hidden, f"{stored}.{part}") for part in ("weight", "bias")]
