"""The operators of ONNX Runtime that take the place of a mixer's or a pattern's nodes, and which graph uses which.

``GatedDeltaNet`` is not among them: it computes what ``LinearAttention`` does, its state is value-major, so the whole
state would be turned around twice a call, and over 64 rows its kernel for the processor takes five times as long
(benchmarks/lowerings.py). Nor is ``GatedRMSNorm``, which takes two to five times as long as the plain nodes, nor
``ScaledSiLU``, which is ``QuickGelu`` at a tenth of its speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE
from rowpack.surgery.causal_conv_with_state import causal_conv_with_state
from rowpack.surgery.group_query_attention import group_query_attention
from rowpack.surgery.linear_attention import linear_attention
from rowpack.surgery.linear_attention_gate import DECAY_GATES, linear_attention_gate
from rowpack.surgery.mixer_replacement import Lowering, MixerReplacement
from rowpack.surgery.pattern import Pattern, PatternReplacement
from rowpack.surgery.residual_norm import RESIDUAL_NORM, skip_simplified_layer_normalization
from rowpack.surgery.root_mean_square_norm import RMS_NORM, UNIT_NORM, rms_normalization, unit_rms_normalization
from rowpack.surgery.rotary_embedding import ROTARY, rotary_embedding
from rowpack.surgery.silu import SILU, quick_gelu
from rowpack.surgery.softplus import SOFTPLUS, softplus
from rowpack.surgery.surgery_pass import SurgeryPass

PATTERNS = (RESIDUAL_NORM, RMS_NORM, UNIT_NORM, SILU, DECAY_GATES, SOFTPLUS, ROTARY)
"""In the order of their replacement: what holds another (a residual sum's norm, a gate's softplus) comes before it."""

_STANDARD_DOMAIN = "ai.onnx"


@dataclass(frozen=True)
class FusedOperator:
    """One operator: ``name`` is ``domain.Operator``, ``replaced`` the function or pattern whose place it takes."""

    name: str
    replaced: str
    lowering: Lowering
    node_budget: int

    def replacement(self) -> SurgeryPass:
        """Return the pass that puts this operator in every place of what it replaces."""
        pattern = pattern_named(self.replaced)
        if pattern is not None:
            return PatternReplacement(pattern, self.lowering)
        return MixerReplacement(self.replaced, self.lowering, self.node_budget)


FUSED_OPERATORS = (
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.LinearAttention", GATED_DELTA_RULE, linear_attention, 12),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.CausalConvWithState", CAUSAL_CONV_STATE, causal_conv_with_state, 10),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.GroupQueryAttention", CACHED_ATTENTION, group_query_attention, 20),
    FusedOperator(
        f"{CONTRIBUTED_DOMAIN}.SkipSimplifiedLayerNormalization",
        RESIDUAL_NORM.name,
        skip_simplified_layer_normalization,
        1,
    ),
    FusedOperator(f"{_STANDARD_DOMAIN}.RMSNormalization", RMS_NORM.name, rms_normalization, 1),
    FusedOperator(f"{_STANDARD_DOMAIN}.RMSNormalization", UNIT_NORM.name, unit_rms_normalization, 1),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.QuickGelu", SILU.name, quick_gelu, 1),
    FusedOperator(f"{CONTRIBUTED_DOMAIN}.LinearAttentionGate", DECAY_GATES.name, linear_attention_gate, 5),
    FusedOperator(f"{_STANDARD_DOMAIN}.Softplus", SOFTPLUS.name, softplus, 1),
    FusedOperator(f"{_STANDARD_DOMAIN}.RotaryEmbedding", ROTARY.name, rotary_embedding, 5),
)


def pattern_named(name: str) -> Pattern | None:
    """Return the pattern of this name, or None: mixers are no patterns."""
    return next((pattern for pattern in PATTERNS if pattern.name == name), None)


def lowering_word(operators: tuple[str, ...]) -> str:
    """Return the manifest's word for a graph with these custom operators: ``fused`` when one is a fused form."""
    return "fused" if any(operator.name in operators for operator in FUSED_OPERATORS) else "plain"


def fused_operator_for(replaced: str, names: tuple[str, ...]) -> FusedOperator | None:
    """Return the operator among ``names`` for a function or pattern, or None where the plain form stays."""
    return next(
        (operator for operator in FUSED_OPERATORS if operator.replaced == replaced and operator.name in names), None
    )
