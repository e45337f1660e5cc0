"""Qwen3.5 before the manifest: the 20 keys of ``runtime.json``, and the states its engines carry."""

from __future__ import annotations

from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.older.runtime_facts import (
    LARGEST_SIZE,
    LAYOUT_KEY,
    LAYOUTS,
    PRECISION_KEY,
    RuntimeKeys,
    layer_count,
)

DELTANET = "deltanet"
ATTENTION = "attention"

KEYS = RuntimeKeys(
    sizes=(
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_mamba_layers",
        "num_attention_layers",
        "d_inner",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_nheads",
        "mamba_head_dim",
        "conv_dim",
        "max_cache_length",
    ),
    tokens=("bos_token_id", "eos_token_id"),
    words={PRECISION_KEY: ("fp16", "fp32"), LAYOUT_KEY: LAYOUTS},
    others=("layer_types",),
)

_CACHE_DTYPES = {"fp16": "float16", "fp32": "float32"}
_KINDS = {"linear_attention": DELTANET, "full_attention": ATTENTION}


def check(runtime: Fields) -> None:
    """Check the facts, and that the layers are as many as they say."""
    KEYS.check(runtime)
    kinds = runtime.texts("layer_types")
    if not set(kinds) <= {DELTANET, ATTENTION}:
        raise runtime.wrong("layer_types", f"{DELTANET} or {ATTENTION} for each layer")
    for key, wanted in (
        ("num_hidden_layers", len(kinds)),
        ("num_mamba_layers", kinds.count(DELTANET)),
        ("num_attention_layers", kinds.count(ATTENTION)),
        ("d_inner", runtime.integer("mamba_nheads") * runtime.integer("mamba_head_dim")),
    ):
        if runtime.integer(key) != wanted:
            raise runtime.wrong(key, f"{wanted}, by the other keys")
    if runtime.integer("num_key_value_heads") * runtime.integer("head_dim") > LARGEST_SIZE:
        raise runtime.wrong("head_dim", f"a cache row of at most {LARGEST_SIZE} values")


def states(runtime: Fields) -> list[dict[str, object]]:
    """Return the state table that loaders of that time allocated from these facts; they zeroed every buffer."""
    conv_shape = [runtime.integer("conv_dim"), runtime.integer("mamba_d_conv")]
    recurrent_shape = [runtime.integer(key) for key in ("mamba_nheads", "mamba_d_state", "mamba_head_dim")]
    width = runtime.integer("num_key_value_heads") * runtime.integer("head_dim")
    cache_shape = [runtime.integer("max_cache_length"), width]
    cache_dtype = _CACHE_DTYPES[runtime.text(PRECISION_KEY)]
    table: list[dict[str, object]] = []
    count = {DELTANET: 0, ATTENTION: 0}
    for layer, kind in enumerate(runtime.texts("layer_types")):
        index = count[kind]
        count[kind] += 1
        if kind == DELTANET:
            table.append(_state("conv", layer, f"conv_state_{index}", f"present_conv_{index}", conv_shape))
            table.append(_state("recurrent", layer, f"ssm_state_{index}", f"present_ssm_{index}", recurrent_shape))
        else:
            for role, letter in (("key", "k"), ("value", "v")):
                names = (f"cache_{letter}_{index}", f"present_{letter}_{index}")
                table.append(_state(role, layer, *names, cache_shape, dtype=cache_dtype, appended=True))
    return table


def runtime_of_config(config: Fields) -> dict[str, object]:
    """Return the geometry among the 20 keys from a Hugging Face config, flat or with a nested ``text_config``."""
    text = config.optional_child("text_config") or config
    heads, hidden = text.integer("num_attention_heads", minimum=1), text.integer("hidden_size", minimum=1)
    key_heads = text.integer("linear_num_key_heads", minimum=1)
    value_heads = text.integer("linear_num_value_heads", minimum=1)
    key_dim = text.integer("linear_key_head_dim", minimum=1)
    value_dim = text.integer("linear_value_head_dim", minimum=1)
    kinds = _kinds(text)
    return {
        "vocab_size": text.integer("vocab_size", minimum=1),
        "hidden_size": hidden,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": heads,
        "num_key_value_heads": text.optional_integer("num_key_value_heads") or heads,
        "head_dim": text.optional_integer("head_dim") or hidden // heads,
        "layer_types": kinds,
        "num_mamba_layers": kinds.count(DELTANET),
        "num_attention_layers": kinds.count(ATTENTION),
        "d_inner": value_heads * value_dim,
        "mamba_d_state": key_dim,
        "mamba_d_conv": text.optional_integer("linear_conv_kernel_dim") or 4,
        "mamba_nheads": value_heads,
        "mamba_head_dim": value_dim,
        "conv_dim": 2 * key_heads * key_dim + value_heads * value_dim,
    }


def _kinds(text: Fields) -> list[str]:
    count = layer_count(text)
    if text.raw.get("layer_types") is None:
        interval = text.optional_integer("full_attention_interval") or 4
        return [ATTENTION if (layer + 1) % interval == 0 else DELTANET for layer in range(count)]
    named = text.texts("layer_types")
    if len(named) != count or not set(named) <= _KINDS.keys():
        raise text.wrong("layer_types", f"{count} of {', '.join(_KINDS)}")
    return [_KINDS[name] for name in named]


def _state(
    role: str,
    layer: int,
    name: str,
    output: str,
    shape: list[int],
    *,
    dtype: str = "float32",
    appended: bool = False,
) -> dict[str, object]:
    layouts = {"conv": "channels_by_columns_oldest_first", "recurrent": "value_head_by_key_by_value"}
    return {
        "role": role,
        "layer": layer,
        "input": name,
        "output": output,
        "dtype": dtype,
        "shape": list(shape),
        "layout": layouts.get(role, "position_by_heads"),
        "initial_value": 0.0,
        "update": "append_rows" if appended else "replace",
        "rewindable": appended,
    }
