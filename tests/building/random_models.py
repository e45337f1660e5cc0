"""Configs of small random models in every outer layout, and where the trained ones lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QWEN_CHECKPOINT = ROOT / "packager" / "rowpack" / "demo_checkpoint"
RWKV_CHECKPOINT = ROOT / "tests" / "data" / "rwkv4-kjv-3.7m"

QWEN_TEXT = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "bos_token_id": None,
}
QWEN_NESTED = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": QWEN_TEXT,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
    },
}
RWKV = {
    "model_type": "rwkv",
    "architectures": ["RwkvForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "attention_hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "layer_norm_epsilon": 1e-5,
    "rescale_every": 2,
    "context_length": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

Synthesize = Callable[..., Path]
BuildBundle = Callable[..., Path]
