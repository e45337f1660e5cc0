"""The tensors of an RWKV-4 checkpoint with values spread as in trained models.

Names and shapes are those of transformers' ``RwkvForCausalLM``. The spreads were read off a trained model:
time_decay runs from -5 to 3, so a channel's ``w = -exp(time_decay)`` lies between -0.007 and -20 a row, and
the mixing factors leave the interval from 0 to 1 as training lets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rowpack.synthesis.random_values import Normal, RandomTensor, Uniform, matrix

_TIME_DECAY = Uniform(-5.0, 3.0)
_TIME_FIRST = Uniform(-2.1, -0.15)
_TIME_MIX = Uniform(-0.3, 1.3)
_NORM_WEIGHT = Uniform(0.85, 1.35)
_FINAL_NORM_WEIGHT = Uniform(1.7, 2.5)
_NORM_BIAS = Normal(0.12)


def rwkv_tensors(config: Mapping[str, Any], has_head: bool) -> Iterator[RandomTensor]:
    """Yield every tensor of the family's hyper-parameters; without a head the output projection is the embedding."""
    hidden, vocabulary, intermediate = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    yield matrix("rwkv.embeddings.weight", vocabulary, hidden)
    for index in range(config["num_hidden_layers"]):
        block = f"rwkv.blocks.{index}"
        if index == 0:
            yield from _norm(f"{block}.pre_ln", hidden)
        yield from _norm(f"{block}.ln1", hidden)
        yield from _norm(f"{block}.ln2", hidden)
        yield RandomTensor(f"{block}.attention.time_decay", (hidden,), _TIME_DECAY)
        yield RandomTensor(f"{block}.attention.time_first", (hidden,), _TIME_FIRST)
        for name in ("key", "value", "receptance"):
            yield RandomTensor(f"{block}.attention.time_mix_{name}", (1, 1, hidden), _TIME_MIX)
        for name in ("key", "value", "receptance"):
            yield matrix(f"{block}.attention.{name}.weight", hidden, hidden)
        yield matrix(f"{block}.attention.output.weight", hidden, hidden)
        for name in ("key", "receptance"):
            yield RandomTensor(f"{block}.feed_forward.time_mix_{name}", (1, 1, hidden), _TIME_MIX)
        yield matrix(f"{block}.feed_forward.key.weight", intermediate, hidden)
        yield matrix(f"{block}.feed_forward.receptance.weight", hidden, hidden)
        yield matrix(f"{block}.feed_forward.value.weight", hidden, intermediate)
    yield from _norm("rwkv.ln_out", hidden, _FINAL_NORM_WEIGHT)
    if has_head:
        yield matrix("head.weight", vocabulary, hidden, gain=1.3)


def _norm(prefix: str, width: int, weight: Uniform = _NORM_WEIGHT) -> Iterator[RandomTensor]:
    yield RandomTensor(f"{prefix}.weight", (width,), weight)
    yield RandomTensor(f"{prefix}.bias", (width,), _NORM_BIAS)
