"""The operators of ONNX Runtime that take the place of a mixer's plain subgraph, and which graph uses which.

``GatedDeltaNet`` is not among them: it computes what ``LinearAttention`` does, its state is value-major, so the whole
state would be turned around twice a call, and over 64 rows its kernel for the processor takes five times as long
(benchmarks/lowerings.py). Nor is ``GatedRMSNorm``, which takes two to five times as long as the plain nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE
from rowpack.surgery.causal_conv_with_state import causal_conv_with_state
from rowpack.surgery.group_query_attention import group_query_attention
from rowpack.surgery.linear_attention import linear_attention
from rowpack.surgery.mixer_replacement import Lowering, MixerReplacement
from rowpack.surgery.residual_norm import RESIDUAL_NORM, FuseResidualNorms, skip_simplified_layer_normalization
from rowpack.surgery.surgery_pass import SurgeryPass


@dataclass(frozen=True)
class FusedOperator:
    """One operator: ``name`` is ``domain.Operator``, ``mixer`` the function (or pattern) it can replace."""

    name: str
    mixer: str
    lowering: Lowering
    node_budget: int

    def replacement(self) -> SurgeryPass:
        """Return the pass that replaces every call of the mixer by this operator."""
        if self.mixer == RESIDUAL_NORM:
            return FuseResidualNorms(self.lowering)
        return MixerReplacement(self.mixer, self.lowering, self.node_budget)


FUSED_OPERATORS = (
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.LinearAttention", GATED_DELTA_RULE, linear_attention, 12),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.CausalConvWithState", CAUSAL_CONV_STATE, causal_conv_with_state, 10),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.GroupQueryAttention", CACHED_ATTENTION, group_query_attention, 20),
    FusedOperator(
        f"{CONTRIBUTED_DOMAIN}.SkipSimplifiedLayerNormalization",
        RESIDUAL_NORM,
        skip_simplified_layer_normalization,
        1,
    ),
)


def lowering_word(operators: tuple[str, ...]) -> str:
    """Return the manifest's word for a graph with these custom operators: ``fused`` when one replaces a mixer."""
    return "fused" if any(operator.name in operators for operator in FUSED_OPERATORS) else "plain"


def fused_operator_for(mixer: str, names: tuple[str, ...]) -> FusedOperator | None:
    """Return the operator among ``names`` that replaces ``mixer``, or None where the plain form stays."""
    return next((operator for operator in FUSED_OPERATORS if operator.mixer == mixer and operator.name in names), None)
