"""Configs of small random models that differ from the shipped checkpoints where it matters."""

from __future__ import annotations

from typing import Any

QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "eos_token_id": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 80,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 24,
    "max_position_embeddings": 4096,
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 96,
}
"""Groups of three in both mixers, key and value dims that differ, an own head, another rotary base."""

RWKV: dict[str, Any] = {
    "architectures": ["RwkvForCausalLM"],
    "model_type": "rwkv",
    "attention_hidden_size": 48,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 48,
    "intermediate_size": 112,
    "layer_norm_epsilon": 1e-5,
    "num_hidden_layers": 5,
    "rescale_every": 2,
    "tie_word_embeddings": False,
    "vocab_size": 96,
}
"""Five blocks rescaled every two: exponents 0, 0, 1, 1, 2 and two halvings."""
