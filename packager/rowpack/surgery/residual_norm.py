"""Fused lowering of a residual sum and the RMS norm that follows: ``com.microsoft.SkipSimplifiedLayerNormalization``.

Where the x of an RMS norm (``root_mean_square_norm.py``) is the sum of two tensors of rows, one operator computes sum
and norm in one pass. Only float32 rows match: in half precision a cast lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.pattern import Match, Pattern, producer
from rowpack.surgery.root_mean_square_norm import match_norm
from rowpack.surgery.row_count import ROWS


def skip_simplified_layer_normalization(
    emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]
) -> list[Tensor]:
    """Emit norm and sum of rows x and skip ``[S, width]``; attribute ``epsilon``."""
    normed, mean, deviation, total = emitter.multi_op(
        "SkipSimplifiedLayerNormalization",
        list(inputs),
        "skip_norm",
        [("normed", None, None), ("mean", None, None), ("deviation", None, None), ("sum", None, None)],
        domain=CONTRIBUTED_DOMAIN,
        epsilon=float(attributes["epsilon"]),
    )
    for unused in (mean, deviation):
        unused.name = ""  # optional outputs for training, which the runtime has no values for
    return [normed, total]


def _match(product: Any) -> Match | None:
    """Return the match that ends in the norm's last product; the sum is an output, for others read it as well."""
    norm = match_norm(product)
    residual = None if norm is None else producer(norm.inputs[0], "Add")
    if norm is None or residual is None or any(isinstance(summand, gs.Constant) for summand in residual.inputs):
        return None
    total, weight = norm.inputs
    rows: list[int | str] = [ROWS, int(weight.shape[0])]
    return Match(
        (*norm.nodes, residual),
        (*residual.inputs, weight),
        (*norm.outputs, total),
        (rows, rows, [int(weight.shape[0])]),
        norm.attributes,
    )


RESIDUAL_NORM = Pattern("ResidualNorm", _match)
