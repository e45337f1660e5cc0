"""Decide from paired runs whether a build of rowpack became slower or larger, and how sure that is.

In every round the earlier build is measured twice and the later once. The ratio of the two earlier measurements (A/A)
shows what equal builds differ by on this machine at this hour; the median ratio of later to earlier counts as a change
only beyond every A/A ratio of the run, beyond a tolerance, and where three rounds of four say the same. Less is better
in every metric.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rounds import largest_factor, paired_ratios

Outcome = Literal["worse", "better", "same"]
AGREEING_SHARE = 0.75
"""The share of rounds that must lie on the same side: a few rounds show too little of the noise by their A/A ratios."""
LEAST_ROUNDS = 3
"""Fewer A/A ratios than this say too little about the noise."""


@dataclass(frozen=True)
class MetricRounds:
    """One metric, round by round: the earlier build, the later one, and the earlier one again."""

    name: str
    unit: str
    earlier: Sequence[float]
    later: Sequence[float]
    earlier_again: Sequence[float]


@dataclass(frozen=True)
class Verdict:
    """What a metric's rounds say. ``ratio``: later over earlier, the median with the least and the most;
    ``threshold``: the factor from which the median counts."""

    name: str
    unit: str
    earlier_median: float
    later_median: float
    ratio: float
    least_ratio: float
    most_ratio: float
    noise: float
    threshold: float
    outcome: Outcome


def judge(metric: MetricRounds, tolerance: float) -> Verdict:
    """Compare the rounds of one metric; ``tolerance`` is a share, such as 0.05.

    Each later measurement is paired with the mean of the two earlier ones of its round, which lie before and after it.
    Raises ``ValueError`` for fewer rounds than can show the noise.
    """
    if len(metric.earlier) < LEAST_ROUNDS:
        raise ValueError(f"{len(metric.earlier)} rounds cannot show the noise; {LEAST_ROUNDS} are the least")
    around = [(a + b) / 2 for a, b in zip(metric.earlier, metric.earlier_again, strict=True)]
    ratios = paired_ratios(around, metric.later)
    noise = largest_factor(paired_ratios(metric.earlier, metric.earlier_again))
    threshold = max(1 + tolerance, noise)
    ratio = statistics.median(ratios)
    needed = AGREEING_SHARE * len(ratios)
    outcome: Outcome = "same"
    if ratio > threshold and sum(each > 1 for each in ratios) >= needed:
        outcome = "worse"
    elif ratio < 1 / threshold and sum(each < 1 for each in ratios) >= needed:
        outcome = "better"
    return Verdict(
        metric.name,
        metric.unit,
        statistics.median(around),
        statistics.median(metric.later),
        ratio,
        min(ratios),
        max(ratios),
        noise,
        threshold,
        outcome,
    )


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return 1 when some metric became worse."""
    return int(any(verdict.outcome == "worse" for verdict in verdicts))
