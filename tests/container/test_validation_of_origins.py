"""What a converted bundle leaves open is listed, and a built one leaves nothing open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rule_breaches import Breach, Breaches, assert_breach_is_told
from synthetic_bundles import BundleParts

from rowpack_loaders.validation import origin_rules, validate

BREACHES = Breaches()


def origin(*unknown: str) -> dict[str, Any]:
    """Return the origin of a converted bundle."""
    return {
        "form": "august_2026",
        "length": 7,
        "sha256": "0" * 64,
        "header": '{"model_id": "x"}',
        "unknown": list(unknown),
        "assumed": ["/states"],
    }


@BREACHES.bent("what_is_left_open_is_listed", "manifest_value_left_open", label="no origin")
def _(parts: BundleParts) -> None:
    parts.manifest["layout_decision"] = None


@BREACHES.bent("what_is_left_open_is_listed", "manifest_value_left_open", label="another place listed")
def _(parts: BundleParts) -> None:
    parts.manifest["model"]["parameter_count"] = None
    parts.manifest["origin"] = origin("/layout_decision")


@BREACHES.bent("what_is_left_open_is_listed", "manifest_value_left_open", label="one engine of two")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["opset"] = None
    parts.manifest["origin"] = origin("/engines/decode/opset")


@BREACHES.bent("listed_places_are_there", "origin_pointer_dangling", label="no such key")
def _(parts: BundleParts) -> None:
    parts.manifest["origin"] = origin("/model/colour")


@BREACHES.bent("listed_places_are_there", "origin_pointer_dangling", label="no such item")
def _(parts: BundleParts) -> None:
    parts.manifest["origin"] = origin("/states/99")


@pytest.mark.parametrize("case", BREACHES, ids=str)
def test_a_broken_rule_is_reported_and_nothing_else(case: Breach, tmp_path: Path) -> None:
    assert_breach_is_told(case, tmp_path / "x.bundle")


def test_every_rule_is_tried() -> None:
    assert {case.rule for case in BREACHES} == {rule.__name__ for rule in origin_rules.RULES}


def test_what_is_listed_may_stay_open(tmp_path: Path) -> None:
    parts = BundleParts()
    parts.manifest["layout_decision"] = None
    parts.manifest["model"]["parameter_count"] = None
    parts.manifest["engines"]["decode"]["resident_bytes"]["weights"] = None
    parts.manifest["origin"] = origin(
        "/layout_decision", "/model/parameter_count", "/engines/decode/resident_bytes/weights", "/states/0"
    )
    parts.write(tmp_path / "x.bundle")
    report = validate(tmp_path / "x.bundle")
    assert report.errors == []
