"""The memory gate's decision, as recorded in the manifest, in words."""

from __future__ import annotations

from rowpack.units import format_bytes
from rowpack_loaders.manifest_fields import Fields

_CAPACITY_SOURCES = {
    "target_memory": "given by --target-memory",
    "device": "of the build machine's accelerator",
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
    words = f"{decision.text('layout')}: {_REASONS.get(reason, reason)}"
    copies = decision.integer("copies")
    need = f"{copies} × {format_bytes(decision.integer('weight_bytes'))} of weights"
    budget, capacity = decision.optional_integer("budget_bytes"), decision.optional_integer("capacity_bytes")
    if budget is None or capacity is None:
        return f"{words}; needs {need}"
    source = decision.text("capacity_source")
    percent = decision.integer("budget_percent")
    return (
        f"{words}; {need} against {format_bytes(budget)}, which is {percent} % of the "
        f"{format_bytes(capacity)} {_CAPACITY_SOURCES.get(source, source)}"
    )
