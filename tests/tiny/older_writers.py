"""Write containers as programs wrote them before there was a manifest. Frozen: never change what these functions write.

Self-contained, from the byte rules alone; nothing of rowpack is imported. The samples in
``schema/vectors/good/older`` were written by :func:`write_samples`, and a test writes them again and compares.

    format 1       BUNDLE\\1\\0, header compact with five keys, entries {"offset", "length"}; September to November 2026
    August 2026    BUNDLE\\1\\0, header indented with facts of the model, entries {"offset", "size"}
    before         TRTFB\\0\\1\\0, otherwise as in August
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

BUNDLE_MAGIC = b"BUNDLE\x01\x00"
TRTFB_MAGIC = b"TRTFB\x00\x01\x00"


def container(magic: bytes, header: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Return magic, header length, header, and the sections back to back: no alignment, no trailer."""
    return magic + struct.pack("<Q", len(header)) + header + b"".join(sections.values())


def format_1(family: str, backend: str, sections: Mapping[str, bytes]) -> bytes:
    """Return a container of format 1 without a manifest."""
    header = {
        "format": 1,
        "family": family,
        "task": "text_generation",
        "backend": backend,
        "sections": _table(sections, "length"),
    }
    return container(BUNDLE_MAGIC, json.dumps(header, separators=(",", ":")).encode(), sections)


def august_2026(facts: Mapping[str, object], sections: Mapping[str, bytes], *, magic: bytes = BUNDLE_MAGIC) -> bytes:
    """Return a container of August 2026, or with the magic of the time before."""
    header = {**facts, "sections": _table(sections, "size")}
    return container(magic, json.dumps(header, indent=2).encode(), sections)


def _table(sections: Mapping[str, bytes], length_key: str) -> dict[str, dict[str, int]]:
    table = {}
    offset = 0
    for name, data in sections.items():
        table[name] = {"offset": offset, length_key: len(data)}
        offset += len(data)
    return table


QWEN_RUNTIME = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "bos_token_id": -1,
    "eos_token_id": 2,
    "layer_types": ["deltanet", "attention"],
    "num_mamba_layers": 1,
    "num_attention_layers": 1,
    "d_inner": 16,
    "mamba_d_state": 4,
    "mamba_d_conv": 4,
    "mamba_nheads": 4,
    "mamba_head_dim": 4,
    "conv_dim": 32,
    "precision": "fp16",
    "max_cache_length": 32,
    "decoder_engine_layout": "single",
}

RWKV_RUNTIME = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": -1,
    "precision": "fp32",
    "max_cache_length": 32,
    "decoder_engine_layout": "single",
    "tensor_parallel_size": 1,
    "tensor_parallel_mode": "single",
}

QWEN_CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262144,
        "eos_token_id": 2,
    },
    "eos_token_id": [2, 5],
    "engine_backend": "trt",
    "precision": "fp16",
    "decoder_engine_layout": "split",
}

RWKV_CONFIG = {
    "architectures": ["RwkvForCausalLM"],
    "model_type": "rwkv",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def facts(family: str, model_id: str, precision: str) -> dict[str, object]:
    """Return what a header of August 2026 said of its model, in its order."""
    return {
        "model_id": model_id,
        "model_type": family,
        "family": family,
        "trt_version": "10.13.2.6",
        "trt_abi": "10.13",
        "gpu_name": "NVIDIA GB10",
        "created_at": "2026-08-14T09:30:00Z",
        "vocab_size": 64,
        "hidden_size": 16,
        "num_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_cache_length": 32,
        "runtime_strategy": {"qwen3_5": "qwen3_5_hybrid_mamba_attention"}.get(family, "rwkv_recurrent"),
        "precision": precision,
        "tokenizer_add_special_tokens": 0,
    }


def plan(kind: str) -> bytes:
    """Return bytes that stand for a compiled engine; nobody executes them."""
    return f"plan of the {kind} engine ".encode() * 40


def samples() -> dict[str, bytes]:
    """Return every sample by file name."""
    tokenizer = b'{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'
    qwen_runtime, rwkv_runtime = json.dumps(QWEN_RUNTIME).encode(), json.dumps(RWKV_RUNTIME).encode()
    qwen_config, rwkv_config = json.dumps(QWEN_CONFIG, indent=2).encode(), json.dumps(RWKV_CONFIG).encode()
    split = {"engine.plan": plan("decode"), "prefill.plan": plan("prefill")}
    return {
        "format-1-qwen3_5-single.bundle": format_1(
            "qwen3_5",
            "trt",
            {"engine.plan": plan("decode"), "runtime.json": qwen_runtime, "tokenizer.json": tokenizer},
        ),
        "format-1-qwen3_5-split.bundle": format_1(
            "qwen3_5",
            "trt_rtx",
            {
                **split,
                "runtime.json": json.dumps({**QWEN_RUNTIME, "decoder_engine_layout": "split"}).encode(),
                "tokenizer.json": tokenizer,
                "chat_template.jinja": b"{{ messages }}",
                "generation_config.json": b'{"eos_token_id": [2, 7]}',
            },
        ),
        "format-1-rwkv-single.bundle": format_1(
            "rwkv", "trt", {"runtime.json": rwkv_runtime, "tokenizer.json": tokenizer, "engine.plan": plan("decode")}
        ),
        "august-2026-qwen3_5-split.bundle": august_2026(
            facts("qwen3_5", "Qwen/Qwen3.5-0.8B", "fp16"),
            {
                "engine_plan": plan("decode"),
                "prefill_engine_plan": plan("prefill"),
                "config.json": qwen_config,
                "tokenizer.json": tokenizer,
            },
        ),
        "august-2026-rwkv-single.bundle": august_2026(
            facts("rwkv", "RWKV/rwkv-4-169m-pile", "bf16"),
            {"engine_plan": plan("decode"), "config.json": rwkv_config, "tokenizer.json": tokenizer},
        ),
        "trtfb-qwen3_5-single.bundle": august_2026(
            {**facts("qwen3_5", "Qwen/Qwen3.5-0.8B", "fp32"), "quantization": "fp8"},
            {
                "engine_plan": plan("decode"),
                "config.json": json.dumps({**QWEN_CONFIG, "decoder_engine_layout": "single"}).encode(),
                "tokenizer.json": tokenizer,
            },
            magic=TRTFB_MAGIC,
        ),
        "trtfb-rwkv-single.bundle": august_2026(
            facts("rwkv", "RWKV/rwkv-4-169m-pile", "fp32"),
            {"config.json": rwkv_config, "engine_plan": plan("decode")},
            magic=TRTFB_MAGIC,
        ),
    }


def write_samples(folder: Path) -> None:
    """Write every sample into ``folder``."""
    for name, data in samples().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]))
