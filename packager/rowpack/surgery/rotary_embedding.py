"""Fused lowering of rotary positions: ONNX's own ``RotaryEmbedding``, an operator of opset 23.

The exported graph rotates the first values of each head, half against half (eight nodes); angles are computed from the
positions of the rows, so the operator is given a cosine and a sine a row and no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.pattern import Match, Pattern, producer
from rowpack.surgery.row_count import ROWS

OPSET_OF_ROTARY = 23
"""The first opset with the operator."""


def rotary_embedding(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit the rotated heads ``[S, heads, dim]`` of x, with cosines and sines ``[S, 1, rotary_dim / 2]``."""
    x, cosine, sine = inputs
    heads, dim, rotary_dim = (int(attributes[name]) for name in ("heads", "dim", "rotary_dim"))
    emitter.graph.opset = max(emitter.graph.opset, OPSET_OF_ROTARY)
    rotated = emitter.op(
        "RotaryEmbedding",
        [
            emitter.reshape(x, [1, -1, heads * dim], "rows_batch"),
            _by_batch(emitter, cosine, rotary_dim // 2),
            _by_batch(emitter, sine, rotary_dim // 2),
        ],
        "rotary",
        num_heads=heads,
        rotary_embedding_dim=rotary_dim,
    )
    return [emitter.reshape(rotated, [-1, heads, dim], "heads")]


def _by_batch(emitter: Emitter, angles: Tensor, half: int) -> Tensor:
    """Return ``angles`` as ``[1, S, half]``; all layers read one and the same tensor."""
    shape = emitter.ints(1, -1, half)
    before = [node for node in angles.outputs if node.op == "Reshape" and node.inputs[1] is shape]
    return before[0].outputs[0] if before else emitter.reshape(angles, [1, -1, half], "angles_batch")


def _match(joined: Any) -> Match | None:
    """Return the match that ends in the concatenation of the rotated halves and what is kept."""
    if joined.op != "Concat" or joined.domain or len(joined.inputs) not in (2, 3):
        return None
    first, second = producer(joined.inputs[0], "Sub"), producer(joined.inputs[1], "Add")
    if first is None or second is None:
        return None
    factors = [tensor for node in (first, second) for tensor in node.inputs]
    products = [product for tensor in factors if (product := producer(tensor, "Mul")) is not None]
    if len(products) != len(factors):
        return None
    (low, cosine), (high, sine), *others = (tuple(product.inputs) for product in products)
    if [id(tensor) for pair in others for tensor in pair] != [id(tensor) for tensor in (high, cosine, low, sine)]:
        return None
    parts = producer(low, "Split")
    kept = joined.inputs[2:]
    if parts is None or [id(tensor) for tensor in parts.outputs] != [id(tensor) for tensor in (low, high, *kept)]:
        return None
    x = parts.inputs[0]
    sizes = [int(size) for size in parts.inputs[1].values]
    if sizes[0] != sizes[1] or x.shape is None or len(x.shape) != 3 or joined.attrs.get("axis") not in (2, -1):
        return None
    heads = int(x.shape[1])
    attributes = {"heads": heads, "dim": sum(sizes), "rotary_dim": 2 * sizes[0]}
    angles: list[int | str] = [ROWS, 1, sizes[0]]
    return Match(
        (joined, first, second, *products, parts),
        (x, cosine, sine),
        (joined.outputs[0],),
        ([ROWS, heads, sum(sizes)], angles, angles),
        attributes,
    )


ROTARY = Pattern("Rotary", _match)
