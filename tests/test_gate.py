"""The decision single or split, as a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rowpack.gate import (
    UNKNOWN_CAPACITY,
    Capacity,
    CapacitySource,
    LayoutDecision,
    SplitVeto,
    WeightNeed,
    decide_layout,
)
from rowpack_loaders.errors import RowpackError

GB = 10**9
QWEN_9B_FP16_BYTES = 8_953_803_264 * 2


def decide(requested: Any = "auto", **changes: Any) -> LayoutDecision:
    capacity = changes.pop("capacity_bytes", None)
    copies, weight_bytes = changes.pop("copies", 1), changes.pop("weight_bytes", 80)
    facts: dict[str, Any] = {
        "weights": WeightNeed(weight_bytes, copies, {"decode": weight_bytes}, copies * weight_bytes),
        "state_bytes": 0,
        "key_value_bytes_per_token": 0,
        "capacity": Capacity(capacity, CapacitySource.TARGET_MEMORY) if capacity else UNKNOWN_CAPACITY,
    }
    return decide_layout(requested, **{**facts, **changes})


@pytest.mark.parametrize(
    ("requested", "copies", "weight_bytes", "capacity_bytes", "layout", "reason"),
    [
        ("auto", 1, 80, 100, "split", "fits"),
        ("auto", 1, 81, 100, "single", "does_not_fit"),
        ("auto", 2, 40, 100, "split", "fits"),
        ("auto", 2, 41, 100, "single", "does_not_fit"),
        # On the boundary and one byte past it, also where floating point no longer tells them apart.
        ("auto", 1, 28, 35, "split", "fits"),
        ("auto", 1, 4 * 10**17, 5 * 10**17, "split", "fits"),
        ("auto", 1, 4 * 10**17 + 1, 5 * 10**17, "single", "does_not_fit"),
        ("auto", 1, 79, 99, "split", "fits"),
        ("auto", 1, 80, 99, "single", "does_not_fit"),
        ("auto", 1, 1, None, "single", "capacity_unknown"),
        ("auto", 2, QWEN_9B_FP16_BYTES, 48 * GB, "split", "fits"),
        ("auto", 2, QWEN_9B_FP16_BYTES, 40 * GB, "single", "does_not_fit"),
        ("auto", 1, QWEN_9B_FP16_BYTES, 24 * GB, "split", "fits"),
        ("single", 1, 1, 100, "single", "requested_single"),
        ("single", 1, 1, None, "single", "requested_single"),
        ("split", 2, 1000, 100, "split", "requested_split_override"),
        ("split", 2, 1000, None, "split", "requested_split_override"),
    ],
)
def test_layout_follows_request_weights_and_capacity(
    requested: str, copies: int, weight_bytes: int, capacity_bytes: int | None, layout: str, reason: str
) -> None:
    decision = decide(requested, copies=copies, weight_bytes=weight_bytes, capacity_bytes=capacity_bytes)
    assert (decision.layout, decision.reason) == (layout, reason)
    assert decision.override == (requested == "split")


@pytest.mark.parametrize("veto", SplitVeto)
def test_a_veto_makes_auto_single_and_an_explicit_split_an_error(veto: SplitVeto) -> None:
    decision = decide("auto", capacity_bytes=10**12, veto=veto)
    assert (decision.layout, decision.reason) == ("single", veto)
    assert decide("single", capacity_bytes=10**12, veto=veto).reason == "requested_single"
    with pytest.raises(RowpackError) as caught:
        decide("split", capacity_bytes=10**12, veto=veto)
    assert caught.value.code == "split_impossible"


def test_states_and_caches_are_recorded_and_do_not_count() -> None:
    decision = decide(weight_bytes=80, capacity_bytes=100, state_bytes=10**9, key_value_bytes_per_token=10**9)
    assert decision.layout == "split"


@pytest.mark.parametrize(("needed_bytes", "layout"), [(80, "split"), (81, "single")])
def test_what_the_engines_hold_is_what_counts(needed_bytes: int, layout: str) -> None:
    # Halves that a runtime widens take more than they are stored in; equal constants that a graph holds twice, too.
    weights = WeightNeed(20, 2, {"decode": 40, "prefill": needed_bytes - 40}, needed_bytes)
    assert decide(weights=weights, capacity_bytes=100).layout == layout


def test_json_is_the_layout_decision_of_the_manifest() -> None:
    decision = decide_layout(
        "auto",
        weights=WeightNeed(17455360, 1, {"decode": 17455400, "prefill": 17456000}, 17456040),
        state_bytes=245760,
        key_value_bytes_per_token=2048,
        capacity=Capacity(25769803776, CapacitySource.TARGET_GPU, "L4"),
    )
    assert json.loads(json.dumps(decision.as_json())) == {
        "requested": "auto",
        "layout": "split",
        "reason": "fits",
        "override": False,
        "copies": 1,
        "weight_bytes": 17455360,
        "engine_weight_bytes": {"decode": 17455400, "prefill": 17456000},
        "needed_bytes": 17456040,
        "state_bytes": 245760,
        "key_value_bytes_per_token": 2048,
        "capacity_bytes": 25769803776,
        "capacity_source": "target_gpu",
        "capacity_device": "L4",
        "budget_percent": 80,
        "budget_bytes": 20615843020,
    }


def test_json_of_an_unknown_capacity_has_nulls() -> None:
    document = decide("auto").as_json()
    assert (document["capacity_bytes"], document["capacity_source"], document["budget_bytes"]) == (
        None,
        "unknown",
        None,
    )


@pytest.mark.parametrize(
    ("byte_count", "source"),
    [(None, CapacitySource.DEVICE), (1, CapacitySource.UNKNOWN), (0, CapacitySource.DEVICE)],
)
def test_a_capacity_is_known_exactly_when_it_has_a_source(byte_count: int | None, source: CapacitySource) -> None:
    with pytest.raises(ValueError, match="capacity"):
        Capacity(byte_count, source)


@pytest.mark.parametrize("copies", [0, 3])
def test_two_engines_hold_one_or_two_copies(copies: int) -> None:
    with pytest.raises(ValueError, match="copies"):
        decide(copies=copies, capacity_bytes=100)
