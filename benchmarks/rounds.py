"""Arithmetic of repeated measurements: medians, their spread, and ratios of pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Give the median of some rounds with the least and the most."""

    median: float
    least: float
    most: float


def summarize(values: Sequence[float]) -> Summary:
    """Return the median and the range; ``ValueError`` without values."""
    if not values:
        raise ValueError("no rounds to summarize")
    return Summary(statistics.median(values), min(values), max(values))


def paired_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return second / first round by round: what moves the whole machine in a round cancels."""
    return [later / earlier for earlier, later in zip(first, second, strict=True)]


def largest_factor(ratios: Sequence[float]) -> float:
    """Return the largest of the ratios and their inverses, 1.0 or more: how far apart equals came out."""
    return math.exp(max(abs(math.log(ratio)) for ratio in ratios))
