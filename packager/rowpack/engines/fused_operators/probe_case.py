"""What a probe runs: cases of inputs, how prompts are cut, and the definition that the results must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rowpack.engines.fused_operators.recurrences import Array

RANDOM_BAR = 2e-6
ADVERSARIAL_BAR = 1e-5
"""Largest deviation from the float64 recurrence, relative to the largest magnitude of the tensor."""

LONGEST_ROWS = 130

CUTS = ((1,), (1,) * 8, (63,), (64,), (64, 64, 2))
"""Prompts as the rows of each call; the state is carried from call to call."""

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class ProbeCase:
    """One set of inputs: ``rows`` are cut into calls, ``state`` is carried, ``fixed`` is the same in every call."""

    name: str
    rows: Mapping[str, Array]
    state: Mapping[str, Array]
    fixed: Mapping[str, Array]
    bar: float


@dataclass(frozen=True)
class ProbePlan:
    """What is run: declared shapes in the call's order, the constant inputs, the cases, and the recurrence.

    ``recurrence`` takes the inputs by name and returns the outputs in the call's order, the state last where the cases
    have one. ``caches`` tells that rows are appended to the state instead.
    """

    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]
    outputs: Mapping[str, Shape]
    cases: tuple[ProbeCase, ...]
    recurrence: Callable[..., tuple[Array, ...]]
    caches: bool = False


def bar_of(name: str) -> float:
    """Return the bar of the case called ``name``."""
    return RANDOM_BAR if name == "random" else ADVERSARIAL_BAR
