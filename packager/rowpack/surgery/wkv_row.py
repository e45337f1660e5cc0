"""Lowering of ``Wkv4`` to one row: the definition itself, without the scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor

NOTHING_SEEN = -1e38
"""Running maximum of an empty state, as the reference starts it; far below any key."""

_Exponent = tuple[Tensor, Tensor | None]
"""An exponent as the sum of two tensors; None stands for zero."""


def seen_maximum(emitter: Emitter, den: Tensor, maximum: Tensor) -> Tensor:
    """Emit the state's running maximum, which counts for nothing while ``den`` is zero.

    Older runtimes start every buffer at zero; without this rule the first row would be 0/0 for very small keys.
    """
    seen = emitter.op("Greater", [den, emitter.floats("zero", 0.0, scalar=True)], "seen")
    lowest = emitter.floats("wkv_nothing_seen", NOTHING_SEEN, scalar=True)
    return emitter.op("Where", [seen, maximum, lowest], "max_seen")


def wkv_row(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit out ``[1, channels]`` and the state after the row."""
    k, v, decay, bonus, num, den, maximum = inputs
    past = seen_maximum(emitter, den, maximum)
    past_scale, row_scale, _ = _common_scale(emitter, (past, None), (k, bonus), "out")
    numerator = _weighted_sum(emitter, past_scale, num, row_scale, v, "out_num")
    denominator = emitter.op("Add", [emitter.op("Mul", [past_scale, den], "out_den_past"), row_scale], "out_den")
    out = emitter.op("Div", [numerator, denominator], "out")
    kept_scale, new_scale, present_max = _common_scale(emitter, (past, decay), (k, None), "present")
    present_num = _weighted_sum(emitter, kept_scale, num, new_scale, v, "present_num")
    present_den = emitter.op(
        "Add", [emitter.op("Mul", [kept_scale, den], "present_den_past"), new_scale], "present_den"
    )
    return [out, present_num, present_den, present_max]


def _common_scale(emitter: Emitter, past: _Exponent, row: _Exponent, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Emit (e^(past − m), e^(row − m), m) with m the larger exponent as float32 holds it.

    The distance to m is taken before the second summand is added: what rounding m lost is then in the scale, where
    it is not lost. With keys of a hundred, rounding m at each row would otherwise sum up to 1e-5 of the result.
    """
    sums = [
        value if summand is None else emitter.op("Add", [value, summand], f"{name}_{word}_exponent")
        for (value, summand), word in ((past, "past"), (row, "row"))
    ]
    largest = emitter.op("Max", sums, f"{name}_max")
    scales = []
    for (value, summand), word in ((past, "past"), (row, "row")):
        distance = emitter.op("Sub", [value, largest], f"{name}_{word}_distance")
        if summand is not None:
            distance = emitter.op("Add", [distance, summand], f"{name}_{word}_distance_summed")
        scales.append(emitter.op("Exp", [distance], f"{name}_{word}_scale"))
    return scales[0], scales[1], largest


def _weighted_sum(
    emitter: Emitter, past_scale: Tensor, past: Tensor, row_scale: Tensor, row: Tensor, name: str
) -> Tensor:
    """Emit past_scale · past + row_scale · row."""
    return emitter.op(
        "Add",
        [
            emitter.op("Mul", [past_scale, past], f"{name}_past"),
            emitter.op("Mul", [row_scale, row], f"{name}_row"),
        ],
        name,
    )
