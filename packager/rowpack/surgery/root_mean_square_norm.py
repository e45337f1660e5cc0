"""Fused lowering of norms over the last axis: ONNX's own ``RMSNormalization``, an operator of opset 23.

The exported graph spells x / √(mean(x²) + ε) · weight in six nodes, and the unit norm x / √(Σx² + ε) of keys and
queries in five. With d values in a row the latter is an RMS norm as well: Σx² + ε = d · (mean(x²) + ε / d), so

    x / √(Σx² + ε) = x / √(mean(x²) + ε / d) · d^−½
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor, static_shape
from rowpack.surgery.pattern import Match, Pattern, chain, is_vector, number
from rowpack.surgery.row_count import ROWS

OPSET_OF_NORM = 23
"""The first opset with the operator."""


def rms_normalization(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the norm of x ``[…, width]`` with a weight ``[width]``; attribute ``epsilon``."""
    return [_norm(emitter, inputs[0], inputs[1], float(attributes["epsilon"]))]


def unit_rms_normalization(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit x ``[…, width]`` with unit length along its last axis; attributes ``epsilon`` and ``width``."""
    width = int(attributes["width"])
    weight = emitter.constant(f"unit_norm_{width}", np.full(width, width**-0.5, np.float32))
    return [_norm(emitter, inputs[0], weight, float(attributes["epsilon"]) / width)]


def _norm(emitter: Emitter, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    emitter.graph.opset = max(emitter.graph.opset, OPSET_OF_NORM)
    return emitter.op("RMSNormalization", [x, weight], "rms_norm", axis=-1, epsilon=epsilon)


def match_norm(product: Any) -> Match | None:
    """Return the RMS norm that ends in the product with its weight."""
    nodes = chain(product, ("Mul", "Div", "Sqrt", "Add", "ReduceMean", "Pow"))
    if nodes is None or not is_vector(product.inputs[1]):
        return None
    _, division, _, shifted, mean, power = nodes
    x, weight = power.inputs[0], product.inputs[1]
    epsilon = number(shifted.inputs[1])
    if division.inputs[0] is not x or epsilon is None or number(power.inputs[1]) != 2.0 or not _is_over_rows(mean):
        return None
    width = int(weight.shape[0])
    return Match(tuple(nodes), (x, weight), (product.outputs[0],), ([ROWS, width], [width]), {"epsilon": epsilon})


def _match_unit_norm(division: Any) -> Match | None:
    """Return the unit norm that ends in the division."""
    nodes = chain(division, ("Div", "Sqrt", "Add", "ReduceSum", "Mul"))
    if nodes is None:
        return None
    _, _, shifted, total, squared = nodes
    x, epsilon = squared.inputs[0], number(shifted.inputs[1])
    if squared.inputs[1] is not x or division.inputs[0] is not x or epsilon is None or not _is_over_rows(total):
        return None
    if x.shape is None or not isinstance(x.shape[-1], int):
        return None
    width = int(static_shape(x)[-1])
    attributes = {"epsilon": epsilon, "width": width}
    return Match(tuple(nodes), (x,), (division.outputs[0],), ([ROWS, width],), attributes)


def _is_over_rows(reduction: Any) -> bool:
    """Tell whether a reduction is over the last axis alone, which it keeps."""
    return number(reduction.inputs[1]) == -1.0 and reduction.attrs.get("keepdims", 1) == 1


RMS_NORM = Pattern("RmsNorm", match_norm)
UNIT_NORM = Pattern("UnitNorm", _match_unit_norm)
