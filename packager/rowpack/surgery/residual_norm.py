"""Fused lowering of a residual sum and the RMS norm that follows: ``com.microsoft.SkipSimplifiedLayerNormalization``.

The exported graph spells the norm x / √(mean(x²) + ε) · weight in six nodes; where x is the sum of two tensors of rows,
one operator computes sum and norm in one pass. Only float32 rows match: in half precision a cast lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.surgery.mixer_replacement import Lowering, take_place
from rowpack.surgery.surgery_pass import surgery_error

RESIDUAL_NORM = "ResidualNorm"
"""Name under which the pattern is looked up as mixers are; it is no function of the exported graph."""

_CHAIN = ("Mul", "Div", "Sqrt", "Add", "ReduceMean", "Pow", "Add")


@dataclass(frozen=True)
class ResidualNorm:
    """One match: ``nodes`` from the last product back to the residual sum."""

    nodes: tuple[Any, ...]
    weight: Tensor
    epsilon: float

    @property
    def summands(self) -> list[Tensor]:
        """The two tensors of rows that are added."""
        return list(self.nodes[-1].inputs)

    @property
    def total(self) -> Tensor:
        """Their sum, which others read as well."""
        return self.nodes[-1].outputs[0]

    @property
    def normed(self) -> Tensor:
        """The scaled norm."""
        return self.nodes[0].outputs[0]

    @property
    def width(self) -> int:
        """Values of a row."""
        return int(self.weight.shape[0])


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


def residual_norms(graph: gs.Graph) -> list[ResidualNorm]:
    """Return every residual sum that is read by an RMS norm over its last axis."""
    return [found for node in graph.nodes if (found := _match(node)) is not None]


class FuseResidualNorms:
    """Replace every match by the node of ``lowering``."""

    name = f"{RESIDUAL_NORM} by {skip_simplified_layer_normalization.__name__}"

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def check_before(self, graph: gs.Graph) -> None:
        """Nothing is asked: a graph without residual norms, as in half precision, stays as it is."""

    def apply(self, graph: gs.Graph) -> None:
        """Emit one node a match; what read the sum or the norm reads it."""
        emitter = Emitter(graph)
        for match in residual_norms(graph):
            scope = emitter.at_root(match.nodes[0].name)
            inputs = [*match.summands, match.weight]
            normed, total = self._lowering(scope, inputs, {"epsilon": match.epsilon})
            old_normed, old_total = match.normed, match.total
            for node in match.nodes:
                node.inputs.clear()
                node.outputs.clear()
            take_place(emitter, old_normed, normed)
            take_place(emitter, old_total, total)
            matched = {id(node) for node in match.nodes}
            graph.nodes = [node for node in graph.nodes if id(node) not in matched]

    def check_after(self, graph: gs.Graph) -> None:
        """No match may be left."""
        left = residual_norms(graph)
        if left:
            raise surgery_error(
                self.name,
                "norms are left",
                where=left[0].nodes[0].name,
                found=f"{len(left)} norms",
                expected="none",
            )


def _match(product: Any) -> ResidualNorm | None:
    """Return the match that ends in ``product``, walking back from it."""
    nodes = [product]
    if product.op != _CHAIN[0] or product.domain or not isinstance(product.inputs[1], gs.Constant):
        return None
    weight = product.inputs[1]
    # Of a division the norm is the root on the right; everywhere else the chain goes on through the first input.
    for op in _CHAIN[1:]:
        before = nodes[-1].inputs[1 if nodes[-1].op == "Div" else 0].inputs
        if len(before) != 1 or before[0].op != op or before[0].domain:
            return None
        nodes.append(before[0])
    _, division, _, shifted, _, power, residual = nodes
    total = residual.outputs[0]
    if division.inputs[0] is not total or power.inputs[0] is not total or len(weight.shape) != 1:
        return None
    if any(isinstance(summand, gs.Constant) for summand in residual.inputs):
        return None
    epsilon, exponent = _number(shifted.inputs[1]), _number(power.inputs[1])
    if epsilon is None or exponent != 2.0 or any(len(node.outputs[0].outputs) != 1 for node in nodes[1:-1]):
        return None
    return ResidualNorm(tuple(nodes), weight, epsilon)


def _number(tensor: Tensor) -> float | None:
    """Return the value of a constant of one element."""
    return float(tensor.values.item()) if isinstance(tensor, gs.Constant) and tensor.values.size == 1 else None
