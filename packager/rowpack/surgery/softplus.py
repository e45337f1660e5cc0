"""Lowering of softplus(x) = log(1 + e^x) to one operator, for a runtime whose ``Softplus`` takes any x.

The exported graph spells it max(x, 0) + softplus(−|x|), five nodes with which no exponential can overflow. ONNX
Runtime's kernel makes the same distinction itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.pattern import Match, Pattern, producer
from rowpack.surgery.row_count import ROWS

_PROBED_WIDTH = 96
"""Values of a row in the probe: each is computed by itself, so a model's width says nothing."""


def softplus(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit softplus of x, of any shape."""
    return [emitter.op("Softplus", list(inputs), "softplus")]


def match_softplus(total: Any) -> Match | None:
    """Return the match that ends in the sum of both parts."""
    if total.op != "Add" or total.domain:
        return None
    positive, tail = (producer(summand, op) for summand, op in zip(total.inputs, ("Relu", "Softplus"), strict=True))
    negative = None if tail is None else producer(tail.inputs[0], "Neg")
    magnitude = None if negative is None else producer(negative.inputs[0], "Abs")
    if positive is None or magnitude is None or magnitude.inputs[0] is not positive.inputs[0]:
        return None
    nodes = (total, positive, tail, negative, magnitude)
    return Match(nodes, (positive.inputs[0],), (total.outputs[0],), ([ROWS, _PROBED_WIDTH],), {})


SOFTPLUS = Pattern("Softplus", match_softplus)
