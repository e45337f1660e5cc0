"""The tensors of a Qwen3.5 checkpoint with values spread as in trained models.

Names and shapes are those of transformers' ``Qwen3_5ForConditionalGeneration`` and ``Qwen3_5ForCausalLM``.
The spreads of norms, decays and gates were read off a trained model: a decay ``-exp(A_log) * softplus(a +
dt_bias)`` runs from about -0.05 to -40 a row, so some heads remember thousands of rows and some forget at
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rowpack.families.qwen3_5.config import CONV_COLUMNS
from rowpack.synthesis.random_values import Normal, RandomTensor, Uniform, matrix

_A_LOG = Uniform(-2.0, 2.8)
_DT_BIAS = Uniform(0.1, 1.3)
_CONVOLUTION = Normal(0.1)
_LAYER_NORM = Uniform(-0.55, 0.35)
_QUERY_KEY_NORM = Uniform(-0.1, 1.0)
_DELTA_NORM = Uniform(0.4, 1.5)
_FINAL_NORM = Uniform(1.0, 2.0)


VISUAL_SIZES = (
    "hidden_size",
    "intermediate_size",
    "in_channels",
    "temporal_patch_size",
    "patch_size",
    "spatial_merge_size",
    "num_position_embeddings",
    "depth",
    "out_hidden_size",
)
"""What the tensors of a vision configuration are made by."""


def text_tensors(config: Mapping[str, Any], prefix: str, has_head: bool) -> Iterator[RandomTensor]:
    """Yield the text model's tensors; ``prefix`` is ``model`` or ``model.language_model``.

    ``config`` has the family's hyper-parameters; without a head the output projection is the embedding.
    """
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield RandomTensor(f"{prefix}.embed_tokens.weight", (vocabulary, hidden), Normal(1.3 / hidden**0.5))
    for index, kind in enumerate(config["layer_types"]):
        layer = f"{prefix}.layers.{index}"
        if kind == "linear_attention":
            yield from _delta_net(config, f"{layer}.linear_attn")
        else:
            yield from _attention(config, f"{layer}.self_attn")
        yield from _mlp_and_norms(config, layer)
    yield RandomTensor(f"{prefix}.norm.weight", (hidden,), _FINAL_NORM)
    if has_head:
        yield matrix("lm_head.weight", vocabulary, hidden, gain=1.3)


def multi_token_prediction_tensors(config: Mapping[str, Any], layers: int) -> Iterator[RandomTensor]:
    """Yield the ``mtp.*`` tensors: attention layers that a text build leaves out."""
    hidden = config["hidden_size"]
    yield matrix("mtp.fc.weight", hidden, 2 * hidden)
    for index in range(layers):
        yield from _attention(config, f"mtp.layers.{index}.self_attn")
        yield from _mlp_and_norms(config, f"mtp.layers.{index}")
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield RandomTensor(f"mtp.{name}.weight", (hidden,), _LAYER_NORM)


def visual_tensors(config: Mapping[str, int]) -> Iterator[RandomTensor]:
    """Yield the ``model.visual.*`` tensors of ``VISUAL_SIZES``, which a text build leaves out."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    patch = (config["in_channels"], config["temporal_patch_size"], config["patch_size"], config["patch_size"])
    merged = hidden * config["spatial_merge_size"] ** 2
    root = "model.visual"
    yield RandomTensor(f"{root}.patch_embed.proj.weight", (hidden, *patch), Normal(0.02))
    yield RandomTensor(f"{root}.patch_embed.proj.bias", (hidden,), Normal(0.02))
    yield RandomTensor(f"{root}.pos_embed.weight", (config["num_position_embeddings"], hidden), Normal(0.02))
    for index in range(config["depth"]):
        block = f"{root}.blocks.{index}"
        yield from _vision_norm(f"{block}.norm1", hidden)
        yield from _vision_norm(f"{block}.norm2", hidden)
        yield from _vision_linear(f"{block}.attn.qkv", 3 * hidden, hidden)
        yield from _vision_linear(f"{block}.attn.proj", hidden, hidden)
        yield from _vision_linear(f"{block}.mlp.linear_fc1", intermediate, hidden)
        yield from _vision_linear(f"{block}.mlp.linear_fc2", hidden, intermediate)
    yield from _vision_norm(f"{root}.merger.norm", hidden)
    yield from _vision_linear(f"{root}.merger.linear_fc1", merged, merged)
    yield from _vision_linear(f"{root}.merger.linear_fc2", config["out_hidden_size"], merged)


def _delta_net(config: Mapping[str, Any], prefix: str) -> Iterator[RandomTensor]:
    hidden, value_heads = config["hidden_size"], config["linear_num_value_heads"]
    key_width = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    value_width = value_heads * config["linear_value_head_dim"]
    convolved = 2 * key_width + value_width
    yield RandomTensor(f"{prefix}.A_log", (value_heads,), _A_LOG)
    yield RandomTensor(f"{prefix}.conv1d.weight", (convolved, 1, CONV_COLUMNS), _CONVOLUTION)
    yield RandomTensor(f"{prefix}.dt_bias", (value_heads,), _DT_BIAS)
    yield matrix(f"{prefix}.in_proj_a.weight", value_heads, hidden)
    yield matrix(f"{prefix}.in_proj_b.weight", value_heads, hidden)
    yield matrix(f"{prefix}.in_proj_qkv.weight", convolved, hidden)
    yield matrix(f"{prefix}.in_proj_z.weight", value_width, hidden)
    yield RandomTensor(f"{prefix}.norm.weight", (config["linear_value_head_dim"],), _DELTA_NORM)
    yield matrix(f"{prefix}.out_proj.weight", hidden, value_width)


def _attention(config: Mapping[str, Any], prefix: str) -> Iterator[RandomTensor]:
    hidden, head = config["hidden_size"], config["head_dim"]
    query_width = config["num_attention_heads"] * head
    key_width = config["num_key_value_heads"] * head
    yield RandomTensor(f"{prefix}.k_norm.weight", (head,), _QUERY_KEY_NORM)
    yield matrix(f"{prefix}.k_proj.weight", key_width, hidden)
    yield matrix(f"{prefix}.o_proj.weight", hidden, query_width)
    yield RandomTensor(f"{prefix}.q_norm.weight", (head,), _QUERY_KEY_NORM)
    # Twice the width: every head's query is followed by its gate.
    yield matrix(f"{prefix}.q_proj.weight", 2 * query_width, hidden)
    yield matrix(f"{prefix}.v_proj.weight", key_width, hidden)


def _mlp_and_norms(config: Mapping[str, Any], prefix: str) -> Iterator[RandomTensor]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    yield RandomTensor(f"{prefix}.input_layernorm.weight", (hidden,), _LAYER_NORM)
    yield matrix(f"{prefix}.mlp.down_proj.weight", hidden, intermediate)
    yield matrix(f"{prefix}.mlp.gate_proj.weight", intermediate, hidden)
    yield matrix(f"{prefix}.mlp.up_proj.weight", intermediate, hidden)
    yield RandomTensor(f"{prefix}.post_attention_layernorm.weight", (hidden,), _LAYER_NORM)


def _vision_norm(prefix: str, width: int) -> Iterator[RandomTensor]:
    yield RandomTensor(f"{prefix}.weight", (width,), Uniform(0.8, 1.2))
    yield RandomTensor(f"{prefix}.bias", (width,), Normal(0.1))


def _vision_linear(prefix: str, rows: int, columns: int) -> Iterator[RandomTensor]:
    yield matrix(f"{prefix}.weight", rows, columns)
    yield RandomTensor(f"{prefix}.bias", (rows,), Normal(0.02))
