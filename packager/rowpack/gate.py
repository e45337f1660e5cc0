"""Decide from numbers alone whether a bundle gets one engine or two.

``split`` adds a prefill engine for chunks of rows beside the decode engine; it needs room for the weights of both, as
they lie in memory, in four fifths of the memory of the device the bundle is for. How the numbers were measured is not
known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from rowpack_loaders.errors import RowpackError

BUDGET_PERCENT = 80
"""Share of the capacity that weights may fill; the rest is for states, caches, activations and other
programs."""

Layout = Literal["single", "split"]
RequestedLayout = Literal["auto", "single", "split"]


class CapacitySource(StrEnum):
    """Say where the capacity comes from."""

    TARGET_MEMORY = "target_memory"
    """Given by the user: the device the bundle is for."""
    TARGET_GPU = "target_gpu"
    """The published memory of a GPU that the user named."""
    DEVICE = "device"
    """The memory of an accelerator of the build machine."""
    UNIFIED_MEMORY = "unified_memory"
    """The memory that the build machine's accelerator shares with its processor."""
    HOST_MEMORY = "host_memory"
    """The memory of the build machine itself, for backends that run on its processor."""
    UNKNOWN = "unknown"


class SplitVeto(StrEnum):
    """Name a reason for which a build can never be split, whatever the memory."""

    BACKEND_CANNOT_SPLIT = "backend_cannot_split"
    TENSOR_PARALLEL = "tensor_parallel"
    FIXED_ROW_COUNT_WEIGHTS = "fixed_row_count_weights"
    """Weights in a format (NVFP4) for which the backend cannot take a free number of rows."""
    MEDIA_INPUTS = "media_inputs"
    HIDDEN_STATE_OUTPUTS = "hidden_state_outputs"
    """Outputs for multi-token prediction."""
    DRAFT_FEATURES = "draft_features"


class LayoutReason(StrEnum):
    """Say why the layout was decided as it was, when no veto did it."""

    FITS = "fits"
    DOES_NOT_FIT = "does_not_fit"
    CAPACITY_UNKNOWN = "capacity_unknown"
    REQUESTED_SINGLE = "requested_single"
    REQUESTED_SPLIT_OVERRIDE = "requested_split_override"


@dataclass(frozen=True)
class Capacity:
    """Give the memory of the device a bundle is for; ``byte_count`` is ``None`` when nobody knows it.

    ``device`` is the name of the accelerator where it has one.
    """

    byte_count: int | None
    source: CapacitySource
    device: str | None = None

    def __post_init__(self) -> None:
        if (self.byte_count is None) != (self.source is CapacitySource.UNKNOWN):
            raise ValueError("a capacity has a source exactly when it is known")
        if self.byte_count is not None and self.byte_count <= 0:
            raise ValueError(f"a capacity of {self.byte_count} bytes")


UNKNOWN_CAPACITY = Capacity(None, CapacitySource.UNKNOWN)


@dataclass(frozen=True)
class WeightNeed:
    """Say what the weights of a pair take in memory.

    ``stored_bytes`` is one copy as it is stored. ``engine_bytes`` is what each engine holds in memory by itself, and
    ``needed_bytes`` what both hold together: less than the sum where they really share one copy (``copies`` 1), or one
    session serves both.
    """

    stored_bytes: int
    copies: int
    engine_bytes: Mapping[str, int]
    needed_bytes: int

    def __post_init__(self) -> None:
        if self.copies not in (1, 2):
            raise ValueError(f"two engines hold one or two copies of the weights, not {self.copies}")


@dataclass(frozen=True)
class LayoutDecision:
    """Hold a decision with every number that led to it."""

    requested: RequestedLayout
    layout: Layout
    reason: LayoutReason | SplitVeto
    override: bool
    weights: WeightNeed
    state_bytes: int
    key_value_bytes_per_token: int
    capacity: Capacity

    @property
    def budget_bytes(self) -> int | None:
        """Bytes that the weights may fill, rounded down; ``None`` when the capacity is unknown."""
        if self.capacity.byte_count is None:
            return None
        return self.capacity.byte_count * BUDGET_PERCENT // 100

    def as_json(self) -> dict[str, object]:
        """Return the manifest's ``layout_decision``."""
        device = {} if self.capacity.device is None else {"capacity_device": self.capacity.device}
        return {
            "requested": self.requested,
            "layout": self.layout,
            "reason": self.reason.value,
            "override": self.override,
            "copies": self.weights.copies,
            "weight_bytes": self.weights.stored_bytes,
            "engine_weight_bytes": dict(self.weights.engine_bytes),
            "needed_bytes": self.weights.needed_bytes,
            "state_bytes": self.state_bytes,
            "key_value_bytes_per_token": self.key_value_bytes_per_token,
            "capacity_bytes": self.capacity.byte_count,
            "capacity_source": self.capacity.source.value,
            **device,
            "budget_percent": BUDGET_PERCENT,
            "budget_bytes": self.budget_bytes,
        }


def decide_layout(
    requested: RequestedLayout,
    *,
    weights: WeightNeed,
    state_bytes: int,
    key_value_bytes_per_token: int,
    capacity: Capacity,
    veto: SplitVeto | None = None,
) -> LayoutDecision:
    """Return the layout of a bundle and why.

    ``auto`` splits when the weights of both engines take at most 0.8 × capacity, and is single when the capacity is
    unknown. State and key-value bytes are recorded and do not count. ``single`` is always obeyed; ``split`` is
    obeyed whatever the memory and recorded as an override, but raises ``RowpackError`` with code
    ``split_impossible`` under a veto.
    """
    layout: Layout
    reason: LayoutReason | SplitVeto
    if requested == "single":
        layout, reason = "single", LayoutReason.REQUESTED_SINGLE
    elif veto is not None:
        if requested == "split":
            raise _split_impossible(veto)
        layout, reason = "single", veto
    elif requested == "split":
        layout, reason = "split", LayoutReason.REQUESTED_SPLIT_OVERRIDE
    elif capacity.byte_count is None:
        layout, reason = "single", LayoutReason.CAPACITY_UNKNOWN
    # In whole numbers: a boundary must not depend on how 0.8 is rounded.
    elif weights.needed_bytes * 100 <= BUDGET_PERCENT * capacity.byte_count:
        layout, reason = "split", LayoutReason.FITS
    else:
        layout, reason = "single", LayoutReason.DOES_NOT_FIT
    return LayoutDecision(
        requested=requested,
        layout=layout,
        reason=reason,
        override=reason is LayoutReason.REQUESTED_SPLIT_OVERRIDE,
        weights=weights,
        state_bytes=state_bytes,
        key_value_bytes_per_token=key_value_bytes_per_token,
        capacity=capacity,
    )


def _split_impossible(veto: SplitVeto) -> RowpackError:
    causes = {
        SplitVeto.BACKEND_CANNOT_SPLIT: "a backend that runs one engine only",
        SplitVeto.TENSOR_PARALLEL: "more than one tensor-parallel part",
        SplitVeto.FIXED_ROW_COUNT_WEIGHTS: "weights that the backend takes for a fixed number of rows only",
        SplitVeto.MEDIA_INPUTS: "media inputs",
        SplitVeto.HIDDEN_STATE_OUTPUTS: "outputs of hidden states for multi-token prediction",
        SplitVeto.DRAFT_FEATURES: "draft features",
    }
    return RowpackError(
        "split_impossible",
        "a split bundle was asked for, and this build can never be split",
        where="--decoder-engine-layout split",
        found=causes[veto],
        expected="a build with one text engine pair",
        remedy="Leave the layout to auto, or ask for single",
    )
