"""The memory gate's decision in words that do not contradict its numbers."""

from __future__ import annotations

import pytest

from rowpack.cli.layout_words import layout_in_words
from rowpack.gate import Capacity, CapacitySource, WeightNeed, decide_layout
from rowpack_loaders.manifest_fields import Fields

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "capacity_bytes", "words"),
    [
        # One copy for both engines that is too much: there is no second one to speak of.
        (
            WeightNeed(3 * GB, 1, {"decode": 3 * GB, "prefill": 3 * GB}, 3 * GB),
            2 * GB,
            "single: the weights do not fit; 3",
        ),
        (
            WeightNeed(3 * GB, 2, {"decode": 3 * GB, "prefill": 3 * GB}, 6 * GB),
            5 * GB,
            "single: the weights do not fit twice over; 6",
        ),
        (
            WeightNeed(3 * GB, 2, {"decode": 3 * GB, "prefill": 3 * GB}, 6 * GB),
            2 * GB,
            "single: the weights do not fit, not even once; 6",
        ),
        # Half precision that is widened: what an engine holds counts, not what is stored.
        (
            WeightNeed(3 * GB, 2, {"decode": 6 * GB, "prefill": 6 * GB}, 12 * GB),
            5 * GB,
            "single: the weights do not fit, not even once; 12",
        ),
        (WeightNeed(3 * GB, 1, {"decode": 3 * GB, "prefill": 3 * GB}, 3 * GB), 5 * GB, "split: the weights fit; 3"),
    ],
)
def test_why_a_bundle_is_single(weights: WeightNeed, capacity_bytes: int, words: str) -> None:
    decision = decide_layout(
        "auto",
        weights=weights,
        state_bytes=0,
        key_value_bytes_per_token=0,
        capacity=Capacity(capacity_bytes, CapacitySource.TARGET_MEMORY),
    )
    assert layout_in_words(Fields(decision.as_json(), "", "layout_decision")).startswith(words)
