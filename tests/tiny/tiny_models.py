"""Two random models of the smallest useful size, as checkpoints: what vectors and old loaders are tried with.

Sixteen columns, two layers, 64 tokens. Never change a configuration: bundles kept as vectors were built from them, and
today's builds are compared with those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rowpack.synthesis import synthesize

QWEN: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "hidden_act": "silu",
    "attention_bias": False,
}

RWKV: dict[str, Any] = {
    "model_type": "rwkv",
    "architectures": ["RwkvForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 16,
    "attention_hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "rescale_every": 6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "context_length": 256,
}

CONFIGS = {"qwen3_5": QWEN, "rwkv": RWKV}

BUILD_OPTIONS: dict[str, Any] = {
    "max_sequence_length": 64,
    "prefill_rows": 16,
    "target_memory_bytes": 2**30,
    "model_id": "tiny",
}
"""What a build of these models is asked for, beside the layout."""


def tiny_checkpoint(family: str, folder: Path) -> Path:
    """Write the checkpoint of ``family`` into the new ``folder`` and return it; the same bytes each time."""
    synthesize(CONFIGS[family], folder, weight_format="safetensors", dtype="F32", seed=7)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()), encoding="utf-8")
    return folder


def tokenizer() -> dict[str, Any]:
    """Return a tokenizer of whole words: ``w0`` to ``w63``."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{index}": index for index in range(64)}, "unk_token": "w1"},
    }
