"""Hyper-parameters of Qwen3.5 text models, from the flat and from the published nested config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rowpack.families.config_reading import ConfigReader

NESTED_MODEL_TYPE = "qwen3_5"
FLAT_MODEL_TYPE = "qwen3_5_text"

CONV_COLUMNS = 4


@dataclass(frozen=True)
class Qwen35Config:
    """The dimensions of one model; names follow the published config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tied: bool
    tensor_prefix: str

    @property
    def key_width(self) -> int:
        """Columns of all DeltaNet keys of one row."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Columns of all DeltaNet values of one row."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def kv_width(self) -> int:
        """Columns of one cached key or value row."""
        return self.num_key_value_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Columns of all attention queries of one row."""
        return self.num_attention_heads * self.head_dim


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of the config: nested under ``text_config`` in published repositories."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def read_config(config: Mapping[str, Any], tensor_names: Sequence[str]) -> Qwen35Config:
    """Read the hyper-parameters; raises one RowpackError that names every value that cannot be built."""
    text = text_config(config)
    where = "config.json#/text_config" if text is not config else "config.json#"
    reader = ConfigReader(text, where)
    hidden_size = reader.positive_int("hidden_size")
    heads = reader.positive_int("num_attention_heads")
    kv_heads = reader.positive_int("num_key_value_heads", heads)
    head_dim = reader.positive_int("head_dim", max(hidden_size // heads, 1))
    key_heads = reader.positive_int("linear_num_key_heads")
    value_heads = reader.positive_int("linear_num_value_heads")
    layer_types = _layer_types(text, reader)
    theta, rotary_fraction = _rotary(text, reader)
    rotary_dim = int(head_dim * min(rotary_fraction, 2.0))

    reader.require(heads % kv_heads == 0, "num_key_value_heads", kv_heads, f"a divisor of {heads}")
    reader.require(value_heads % key_heads == 0, "linear_num_key_heads", key_heads, f"a divisor of {value_heads}")
    reader.require(
        rotary_dim % 2 == 0 and 0 < rotary_dim <= head_dim,
        "partial_rotary_factor",
        rotary_fraction,
        f"a fraction that leaves an even number of the {head_dim} head dimensions",
    )
    columns = reader.positive_int("linear_conv_kernel_dim", CONV_COLUMNS)
    reader.require(columns == CONV_COLUMNS, "linear_conv_kernel_dim", columns, str(CONV_COLUMNS))
    activation = text.get("hidden_act", "silu")
    reader.require(activation == "silu", "hidden_act", activation, "'silu'")
    reader.require(not text.get("attention_bias"), "attention_bias", text.get("attention_bias"), "false")
    reader.require(reader.boolean("attn_output_gate", True), "attn_output_gate", False, "true")

    prefix = (
        "model.language_model." if any(name.startswith("model.language_model.") for name in tensor_names) else "model."
    )
    result = Qwen35Config(
        vocab_size=reader.positive_int("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.positive_int("intermediate_size"),
        layer_types=layer_types,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=reader.positive_int("linear_key_head_dim"),
        linear_value_head_dim=reader.positive_int("linear_value_head_dim"),
        rms_norm_eps=reader.positive_float("rms_norm_eps", 1e-6),
        max_position_embeddings=reader.positive_int("max_position_embeddings", 32768),
        tied=_tied(config, text, tensor_names, reader),
        tensor_prefix=prefix,
    )
    reader.finish()
    return result


def _layer_types(text: Mapping[str, Any], reader: ConfigReader) -> tuple[str, ...]:
    """Return one kind a layer, from ``layer_types`` or else from ``full_attention_interval``."""
    count = reader.layer_count()
    kinds = text.get("layer_types")
    if kinds is None:
        interval = reader.positive_int("full_attention_interval", 4)
        return tuple("full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in range(count))
    known = ("linear_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in known for kind in kinds):
        reader.wrong("layer_types", kinds, f"{count} entries, each one of {', '.join(known)}")
        return ("linear_attention",) * count
    return tuple(kinds)


def _rotary(text: Mapping[str, Any], reader: ConfigReader) -> tuple[float, float]:
    """Return (theta, fraction of the head that is rotated)."""
    parameters = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        reader.wrong("rope_parameters", parameters, "an object")
        parameters = {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    # "mrope" is the older word for the interleaved multi-axis form; on text all axes carry the same position.
    reader.require(kind in ("default", "mrope"), "rope_parameters/rope_type", kind, "'default'")
    rope = ConfigReader(
        {
            "rope_theta": parameters.get("rope_theta", text.get("rope_theta")),
            "partial_rotary_factor": parameters.get("partial_rotary_factor", text.get("partial_rotary_factor")),
        },
        f"{reader.where}/rope_parameters",
    )
    theta = rope.positive_float("rope_theta", 1e7)
    fraction = rope.positive_float("partial_rotary_factor", 0.25)
    reader.problems.extend(rope.problems)
    return theta, fraction


def _tied(
    config: Mapping[str, Any], text: Mapping[str, Any], tensor_names: Sequence[str], reader: ConfigReader
) -> bool:
    """Decide whether the LM head is the embedding, from config and tensors together.

    A nested config may say it inside, outside or in both places; the outer one is what the reference obeys.
    """
    stored_head = "lm_head.weight" in tensor_names
    stated = [place["tie_word_embeddings"] for place in (config, text) if place.get("tie_word_embeddings") is not None]
    if not stated:
        return not stored_head
    for value in stated:
        if not isinstance(value, bool):
            reader.wrong("tie_word_embeddings", value, "true or false")
            return False
    if not any(stated) and not stored_head:
        reader.wrong("tie_word_embeddings", False, "true, since the checkpoint holds no lm_head.weight")
    return bool(stated[0]) if stored_head else True
