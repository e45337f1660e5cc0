"""What counts as a regression, with given numbers."""

from __future__ import annotations

import pytest
from version_verdict import MetricRounds, exit_status, judge

TOLERANCE = 0.05


def metric(later: list[float], earlier: list[float] | None = None, again: list[float] | None = None) -> MetricRounds:
    """Return rounds in which the earlier build takes 100 and again 100 unless told otherwise."""
    same = [100.0] * len(later)
    return MetricRounds("decode", "ms", earlier or same, later, again or same)


def test_a_slowdown_beyond_the_tolerance_is_worse_on_a_quiet_machine() -> None:
    verdict = judge(metric([106.0, 106.0, 107.0]), TOLERANCE)
    assert (verdict.outcome, verdict.threshold) == ("worse", 1.05)
    assert verdict.ratio == pytest.approx(1.06)
    assert exit_status([verdict]) == 1


def test_a_slowdown_within_the_tolerance_is_none() -> None:
    verdict = judge(metric([104.0, 104.0, 104.0]), TOLERANCE)
    assert verdict.outcome == "same"
    assert exit_status([verdict]) == 0


def test_a_slowdown_within_the_noise_of_equal_builds_is_none() -> None:
    rounds = metric([112.0, 112.0, 112.0], earlier=[100.0, 90.0, 100.0], again=[100.0, 110.0, 100.0])
    verdict = judge(rounds, TOLERANCE)
    assert verdict.threshold == pytest.approx(110 / 90)
    assert verdict.outcome == "same"


def test_the_noise_counts_in_both_directions() -> None:
    rounds = metric([112.0, 112.0, 112.0], earlier=[100.0, 110.0, 100.0], again=[100.0, 90.0, 100.0])
    assert judge(rounds, TOLERANCE).noise == pytest.approx(110 / 90)


def test_a_slowdown_beyond_the_noise_is_worse() -> None:
    rounds = metric([130.0, 130.0, 130.0], earlier=[100.0, 90.0, 100.0], again=[100.0, 110.0, 100.0])
    assert judge(rounds, TOLERANCE).outcome == "worse"


def test_a_drift_of_the_machine_is_not_a_change_of_the_build() -> None:
    rounds = metric([100.0, 200.0, 300.0], earlier=[98.0, 196.0, 294.0], again=[102.0, 204.0, 306.0])
    verdict = judge(rounds, TOLERANCE)
    assert verdict.ratio == pytest.approx(1.0)
    assert verdict.outcome == "same"


def test_one_slow_round_does_not_decide() -> None:
    assert judge(metric([100.0, 500.0, 100.0]), TOLERANCE).outcome == "same"


def test_rounds_that_contradict_each_other_do_not_decide() -> None:
    assert judge(metric([90.0, 140.0, 160.0]), TOLERANCE).outcome == "same"
    assert judge(metric([140.0, 140.0, 160.0]), TOLERANCE).outcome == "worse"
    assert judge(metric([90.0, 140.0, 150.0, 160.0]), TOLERANCE).outcome == "worse"
    assert judge(metric([60.0, 70.0, 110.0]), TOLERANCE).outcome == "same"


def test_a_gain_is_named_and_passes() -> None:
    verdict = judge(metric([80.0, 80.0, 80.0]), TOLERANCE)
    assert verdict.outcome == "better"
    assert exit_status([verdict]) == 0


def test_one_worse_metric_among_others_fails() -> None:
    same, worse = judge(metric([100.0] * 3), TOLERANCE), judge(metric([150.0] * 3), TOLERANCE)
    assert exit_status([same, worse, same]) == 1


def test_too_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds cannot show the noise"):
        judge(metric([100.0, 100.0]), TOLERANCE)
