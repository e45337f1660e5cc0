"""Hyper-parameters of RWKV-4 models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rowpack.families.config_reading import ConfigReader

MODEL_TYPE = "rwkv"


@dataclass(frozen=True)
class Rwkv4Config:
    """The dimensions of one model; names follow the published config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    layer_norm_epsilon: float
    rescale_every: int
    tied: bool

    def rescale_exponent(self, block: int) -> int:
        """Return e where block ``block``'s output projections are divided by 2^e (0 without rescaling)."""
        return block // self.rescale_every if self.rescale_every else 0

    def halves_after(self, block: int) -> bool:
        """Tell whether the residual stream is halved after ``block``."""
        return bool(self.rescale_every) and (block + 1) % self.rescale_every == 0


def read_config(config: Mapping[str, Any], tensor_names: Sequence[str]) -> Rwkv4Config:
    """Read the hyper-parameters; raises one RowpackError that names every value that cannot be built."""
    reader = ConfigReader(config)
    hidden = reader.positive_int("hidden_size")
    attention_hidden = reader.positive_int("attention_hidden_size", hidden)
    reader.require(attention_hidden == hidden, "attention_hidden_size", attention_hidden, f"{hidden}, the hidden size")
    stated = reader.boolean("tie_word_embeddings", False)
    tied = stated or "head.weight" not in tensor_names
    if tied and not stated:
        reader.wrong("tie_word_embeddings", stated, "true, since the checkpoint holds no head.weight")
    result = Rwkv4Config(
        vocab_size=reader.positive_int("vocab_size"),
        hidden_size=hidden,
        intermediate_size=reader.positive_int("intermediate_size", 4 * hidden),
        num_hidden_layers=reader.layer_count(),
        layer_norm_epsilon=reader.positive_float("layer_norm_epsilon", 1e-5),
        rescale_every=reader.non_negative_int("rescale_every", 6),
        tied=tied,
    )
    reader.finish()
    return result
