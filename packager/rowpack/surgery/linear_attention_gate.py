"""Fused lowering of the gates of a delta rule: ONNX Runtime's ``com.microsoft.LinearAttentionGate``.

    decay = decay_rate · softplus(a + dt_bias);   beta = sigmoid(b)

The exported graph spells softplus(x) as max(x, 0) + softplus(−|x|), eight nodes in all; a and b are the halves of one
projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.pattern import Match, Pattern, is_vector, producer
from rowpack.surgery.row_count import ROWS
from rowpack.surgery.softplus import match_softplus


def linear_attention_gate(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """Emit beta and the log decay ``[S, heads]`` of b and a ``[S, heads]``, with dt_bias and decay_rate ``[heads]``."""
    b, a, dt_bias, decay_rate = inputs
    heads = int(dt_bias.shape[0])
    by_batch: list[int | str] = [1, ROWS, heads]
    decay, beta = emitter.multi_op(
        "LinearAttentionGate",
        [
            emitter.reshape(a, [1, -1, heads], "a_batch"),
            dt_bias,
            decay_rate,
            emitter.reshape(b, [1, -1, heads], "b_batch"),
        ],
        "gate",
        [("decay", "float32", by_batch), ("beta", "float32", by_batch)],
        domain=CONTRIBUTED_DOMAIN,
    )
    return [emitter.reshape(beta, [-1, heads], "beta"), emitter.reshape(decay, [-1, heads], "decay")]


def _match(product: Any) -> Match | None:
    """Return the match that ends in the product of softplus and decay rate."""
    if product.op != "Mul" or product.domain or not is_vector(product.inputs[1]):
        return None
    total = producer(product.inputs[0], "Add")
    softplus = None if total is None else match_softplus(total)
    if softplus is None:
        return None
    step = producer(softplus.inputs[0], "Add")
    halves = None if step is None else producer(step.inputs[0], "Split")
    if step is None or halves is None or not is_vector(step.inputs[1]) or len(halves.outputs) != 2:
        return None
    b, a = halves.outputs
    readers = [node for node in b.outputs if node.op == "Sigmoid" and not node.domain]
    if step.inputs[0] is not a or len(readers) != 1:
        return None
    beta = readers[0]
    heads = int(step.inputs[1].shape[0])
    rows: list[int | str] = [ROWS, heads]
    return Match(
        (product, *softplus.nodes, step, beta),
        (b, a, step.inputs[1], product.inputs[1]),
        (beta.outputs[0], product.outputs[0]),
        (rows, rows, [heads], [heads]),
        {},
    )


DECAY_GATES = Pattern("DecayGates", _match)
