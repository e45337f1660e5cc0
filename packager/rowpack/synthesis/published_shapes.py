"""The configurations of published models, as their ``config.json`` has them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from rowpack_loaders.errors import RowpackError

_FULL_ATTENTION_INTERVAL = 4


@dataclass(frozen=True)
class QwenShape:
    """Give what differs between the published sizes of Qwen3.5."""

    layers: int
    hidden: int
    intermediate: int
    query_heads: int
    key_value_heads: int
    delta_value_heads: int
    tied: bool
    vision_layers: int
    vision_hidden: int
    vision_intermediate: int
    vision_heads: int


_QWEN_SHAPES = {
    "qwen3_5-0.8b": QwenShape(24, 1024, 3584, 8, 2, 16, True, 12, 768, 3072, 12),
    "qwen3_5-2b": QwenShape(24, 2048, 6144, 8, 2, 16, True, 24, 1024, 4096, 16),
    "qwen3_5-4b": QwenShape(32, 2560, 9216, 16, 4, 32, True, 24, 1024, 4096, 16),
    "qwen3_5-9b": QwenShape(32, 4096, 12288, 16, 4, 32, False, 27, 1152, 4304, 16),
    "qwen3_5-27b": QwenShape(64, 5120, 17408, 24, 4, 48, False, 27, 1152, 4304, 16),
}

_RWKV_SHAPES = {
    "rwkv4-169m": (12, 768),
    "rwkv4-430m": (24, 1024),
    "rwkv4-1b5": (24, 2048),
    "rwkv4-3b": (32, 2560),
    "rwkv4-7b": (32, 4096),
    "rwkv4-14b": (40, 5120),
}

PUBLISHED_SHAPES = (*_QWEN_SHAPES, *_RWKV_SHAPES)
"""Names that ``published_config`` knows."""


def published_config(name: str) -> dict[str, Any]:
    """Return the ``config.json`` of a published model; code ``unknown_shape`` when there is none of this
    name."""
    if name in _QWEN_SHAPES:
        return _qwen_config(_QWEN_SHAPES[name])
    if name in _RWKV_SHAPES:
        return _rwkv_config(*_RWKV_SHAPES[name])
    nearest = difflib.get_close_matches(name.lower(), PUBLISHED_SHAPES, n=1)
    raise RowpackError(
        "unknown_shape",
        "no published model has this name",
        found=name,
        expected=", ".join(PUBLISHED_SHAPES),
        remedy=f"Did you mean {nearest[0]}?" if nearest else "Use one of these names, or give a config.json.",
    )


def _qwen_config(shape: QwenShape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "text_config": _qwen_text_config(shape),
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": shape.vision_intermediate,
            "num_heads": shape.vision_heads,
            "out_hidden_size": shape.hidden,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 2304,
            "initializer_range": 0.02,
            "deepstack_visual_indexes": [],
        },
        "tie_word_embeddings": shape.tied,
        "transformers_version": "5.17.0",
    }


def _qwen_text_config(shape: QwenShape) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": _FULL_ATTENTION_INTERVAL,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": [
            "linear_attention" if (index + 1) % _FULL_ATTENTION_INTERVAL else "full_attention"
            for index in range(shape.layers)
        ],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": shape.delta_value_heads,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": shape.query_heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "vocab_size": 248320,
    }


def _rwkv_config(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "architectures": ["RwkvForCausalLM"],
        "model_type": "rwkv",
        "attention_hidden_size": hidden,
        "bos_token_id": 0,
        "context_length": 1024,
        "eos_token_id": 0,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "layer_norm_epsilon": 1e-05,
        "num_hidden_layers": layers,
        "rescale_every": 6,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 50277,
    }
