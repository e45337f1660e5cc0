"""Rules about runtime.json and the state table: old loaders size their buffers by the one, new ones by the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import StateRecord
from rowpack_loaders.strict_json import is_json_integer
from rowpack_loaders.validation.runtime_json_rules import runtime_json_section
from rowpack_loaders.validation.subject import Finding, Rule, Subject

DELTANET, ATTENTION = "deltanet", "attention"

Facts = Iterator[tuple[str, object, object]]
"""A key of runtime.json (or a sum over several), what it says, and what the states say."""


def runtime_json_matches_states(subject: Subject) -> Iterator[Finding]:
    """Sizes and layers that runtime.json gives are those of the states."""
    name, parsed = runtime_json_section(subject)
    compare = _COMPARISONS.get(subject.container.family)
    if parsed is None or compare is None:
        return
    for key, found, wanted in compare(parsed, subject.states):
        if found is not None and found != wanted:  # the schema has told what is missing
            yield Problem(
                "runtime_json_state_mismatch",
                "runtime.json and the state table of the manifest contradict each other",
                where=f"{name}#/{key}",
                found=str(found)[:200],
                expected=f"{wanted}, by /states"[:200],
            )


def _qwen3_5_facts(runtime: dict[str, object], states: tuple[StateRecord, ...]) -> Facts:
    kinds = runtime.get("layer_types")
    if isinstance(kinds, list):
        yield "num_hidden_layers", runtime.get("num_hidden_layers"), len(kinds)
        for kind, role, count in ((DELTANET, "conv", "num_mamba_layers"), (ATTENTION, "key", "num_attention_layers")):
            layers = [layer for layer, name in enumerate(kinds) if name == kind]
            yield "layer_types", f"{kind} in {layers}", f"{kind} in {[s.layer for s in states if s.role == role]}"
            yield count, runtime.get(count), len(layers)
    for channels, columns in {state.shape for state in states if state.role == "conv" and len(state.shape) == 2}:
        yield "conv_dim", runtime.get("conv_dim"), channels
        yield "mamba_d_conv", runtime.get("mamba_d_conv"), columns
    for heads, keys, values in {state.shape for state in states if state.role == "recurrent" and len(state.shape) == 3}:
        for key, size in (("mamba_nheads", heads), ("mamba_d_state", keys), ("mamba_head_dim", values)):
            yield key, runtime.get(key), size
        yield "d_inner", runtime.get("d_inner"), heads * values
    for width in {state.shape[1] for state in states if state.role == "key" and len(state.shape) == 2}:
        yield "num_key_value_heads × head_dim", _product(runtime, "num_key_value_heads", "head_dim"), width


def _rwkv_facts(runtime: dict[str, object], states: tuple[StateRecord, ...]) -> Facts:
    yield "num_hidden_layers", runtime.get("num_hidden_layers"), len({state.layer for state in states})
    yield "head_dim", runtime.get("head_dim"), runtime.get("hidden_size")
    for shape in {state.shape for state in states if state.shape}:
        yield "hidden_size", runtime.get("hidden_size"), shape[-1]


def _product(runtime: dict[str, object], *keys: str) -> int | None:
    sizes = [runtime.get(key) for key in keys]
    return math.prod(size for size in sizes if isinstance(size, int)) if all(map(is_json_integer, sizes)) else None


_COMPARISONS: dict[str, Callable[[dict[str, object], tuple[StateRecord, ...]], Facts]] = {
    "qwen3_5": _qwen3_5_facts,
    "rwkv": _rwkv_facts,
}

RULES: tuple[Rule, ...] = (runtime_json_matches_states,)
