"""RWKV-4 before the manifest: the 14 keys of ``runtime.json``, and the states its engines carry."""

from __future__ import annotations

from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.older.runtime_facts import LAYOUT_KEY, LAYOUTS, PRECISION_KEY, PRECISIONS, RuntimeKeys, layer_count

KEYS = RuntimeKeys(
    sizes=(
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_cache_length",
        "tensor_parallel_size",
    ),
    tokens=("bos_token_id", "eos_token_id", "pad_token_id"),
    words={PRECISION_KEY: PRECISIONS, LAYOUT_KEY: LAYOUTS, "tensor_parallel_mode": ("single",)},
)

_STATES = (("shift", "attn"), ("shift", "ff"), ("wkv_num", "num"), ("wkv_den", "den"), ("wkv_max", "max"))


def check(runtime: Fields) -> None:
    """Check the facts, and those that had one value only; an engine in several parts cannot be described."""
    KEYS.check(runtime)
    for key, only in (
        ("tensor_parallel_size", 1),
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
        ("head_dim", runtime.integer("hidden_size")),
    ):
        if runtime.integer(key) != only:
            raise runtime.wrong(key, str(only))


def states(runtime: Fields) -> list[dict[str, object]]:
    """Return the state table that loaders of that time allocated from these facts; they zeroed every buffer."""
    return [
        {
            "role": role,
            "layer": layer,
            "input": f"{word}_state_{layer}",
            "output": f"present_{word}_{layer}",
            "dtype": "float32",
            "shape": [1, runtime.integer("hidden_size")],
            "layout": "row",
            "initial_value": 0.0,
            "update": "replace",
            "rewindable": False,
        }
        for layer in range(runtime.integer("num_hidden_layers"))
        for role, word in _STATES
    ]


def runtime_of_config(config: Fields) -> dict[str, object]:
    """Return the geometry among the 14 keys from a Hugging Face config."""
    hidden = config.integer("hidden_size", minimum=1)
    return {
        "vocab_size": config.integer("vocab_size", minimum=1),
        "hidden_size": hidden,
        "num_hidden_layers": layer_count(config),
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": hidden,
        "tensor_parallel_size": config.optional_integer("tensor_parallel_size") or 1,
        "tensor_parallel_mode": "single",
    }
