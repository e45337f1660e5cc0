"""The memory gate's decision, as recorded in the manifest, in words."""

from __future__ import annotations

from rowpack.units import format_bytes
from rowpack_loaders.manifest_fields import Fields

_CAPACITY_SOURCES = {
    "target_memory": "given by --target-memory",
    "target_gpu": "that the data sheet gives",
    "device": "of the build machine's accelerator",
    "unified_memory": "that the build machine's accelerator shares with its processor",
    "host_memory": "of the build machine",
}

_REASONS = {
    "fits": "the weights fit",
    "does_not_fit": "the weights do not fit twice over",
    "capacity_unknown": "how much memory the device has is not known (--target-memory says it)",
    "requested_single": "asked for",
    "requested_split_override": "asked for, whatever the memory",
    "backend_cannot_split": "this backend runs one engine only",
    "tensor_parallel": "tensor-parallel builds are never split",
    "fixed_row_count_weights": "the backend takes these weights for a fixed number of rows only",
    "media_inputs": "builds with media inputs are never split",
    "hidden_state_outputs": "builds with outputs for multi-token prediction are never split",
    "draft_features": "builds with draft features are never split",
}


def layout_in_words(decision: Fields) -> str:
    """Return the layout, its reason, and the numbers it was decided from, as one line.

    ``decision`` is the manifest's ``layout_decision``; a reason this version does not know is shown as it is.
    """
    reason = decision.text("reason")
    words = f"{decision.text('layout')}: {_reason_in_words(reason, decision)}"
    need = _weights_in_words(decision)
    budget, capacity = decision.optional_integer("budget_bytes"), decision.optional_integer("capacity_bytes")
    if budget is None or capacity is None:
        return f"{words}; needs {need}"
    source = decision.text("capacity_source")
    device = decision.optional_text("capacity_device")
    percent = decision.integer("budget_percent")
    return (
        f"{words}; {need} against {format_bytes(budget)}, which is {percent} % of the "
        f"{format_bytes(capacity)} {_CAPACITY_SOURCES.get(source, source)}{f' ({device})' if device else ''}"
    )


def _reason_in_words(reason: str, decision: Fields) -> str:
    """Return the reason; what does not fit once is not told to be too much twice over."""
    budget = decision.optional_integer("budget_bytes")
    if reason == "does_not_fit" and budget is not None:
        if decision.integer("copies") == 1:
            return "the weights do not fit"
        held = decision.optional_child("engine_weight_bytes")
        once = None if held is None else held.optional_integer("decode")
        if (decision.integer("weight_bytes") if once is None else once) > budget:
            return "the weights do not fit, not even once"
    return _REASONS.get(reason, reason)


def _weights_in_words(decision: Fields) -> str:
    """Return what the weights of a pair take: what is compared with the budget."""
    copies, weight_bytes = decision.integer("copies"), decision.integer("weight_bytes")
    needed = decision.optional_integer("needed_bytes")
    if needed is None:
        return f"{copies} × {format_bytes(weight_bytes)} of weights"
    shared = "one copy for both engines" if copies == 1 else "a copy an engine"
    return f"{format_bytes(needed)} of weights ({shared})"
