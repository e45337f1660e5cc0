"""Rules about the recorded layout decision: it is for this layout, and its numbers are those of this bundle."""

from __future__ import annotations

from collections.abc import Iterator

from rowpack_loaders.errors import Problem
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.validation.subject import Finding, Rule, Subject

LARGEST = 2**63


def decision_matches_layout(subject: Subject) -> Iterator[Finding]:
    """The recorded decision is for the layout the bundle has."""
    layout = subject.layout
    decision = subject.manifest_fields.optional_child("layout_decision")
    if decision is not None and decision.text("layout") != layout:
        yield Problem(
            "layout_decision_mismatch",
            "The recorded decision is for another layout",
            where=f"{MANIFEST_SECTION}#/layout_decision/layout",
            found=decision.text("layout")[:80],
            expected=f"{layout}, the decoder_engine_layout",
        )


def decision_numbers_are_those_of_the_bundle(subject: Subject) -> Iterator[Finding]:
    """Bytes of weights, states and cache rows are what the manifest adds up to, and the budget is its share."""
    decision = subject.manifest_fields.optional_child("layout_decision")
    if decision is None:
        return
    states = subject.states
    weights = subject.manifest_fields.optional_child("weights")
    capacity = decision.optional_integer("capacity_bytes")
    wanted = {
        "state_bytes": sum(state.fixed_bytes for state in states),
        "key_value_bytes_per_token": sum(state.bytes_per_token for state in states),
        "budget_bytes": None if capacity is None else capacity * decision.integer("budget_percent") // 100,
    }
    if weights is not None:
        wanted["weight_bytes"] = weights.integer("tensor_bytes")
    for key, number in wanted.items():
        if decision.optional_integer(key) != number:
            yield Problem(
                "layout_decision_number_mismatch",
                "A number of the recorded decision is not that of the bundle",
                where=f"{MANIFEST_SECTION}#/layout_decision/{key}",
                found=str(decision.optional_integer(key)),
                expected="a number that can be stored" if number is not None and number > LARGEST else str(number),
            )


RULES: tuple[Rule, ...] = (decision_matches_layout, decision_numbers_are_those_of_the_bundle)
