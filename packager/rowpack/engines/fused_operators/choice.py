"""Choose plain subgraphs or the runtime's fused operators for a build: ``--lowering plain|fused|auto``.

``plain`` asks nothing of the runtime. ``fused`` takes every fused operator that the model has a use for, and refuses
the build where one is missing or wrong. ``auto`` takes those that are also faster, by a fixed table, so that the same
versions always build the same engines; where one is missing or wrong, the plain form stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rowpack.engines.fused_operators.probe import ProbeOutcome, probe_operator
from rowpack.graph.custom_operators import CONTRIBUTED_DOMAIN
from rowpack.surgery.graph_form import PLAIN, FusedChoice
from rowpack_loaders.errors import Problem, RowpackError

if TYPE_CHECKING:
    import onnx

    from rowpack.surgery.fused_operators import FusedOperator

Lowering = Literal["plain", "fused", "auto"]
LOWERINGS: tuple[Lowering, ...] = ("plain", "fused", "auto")

_FASTER = (
    f"{CONTRIBUTED_DOMAIN}.LinearAttention",
    f"{CONTRIBUTED_DOMAIN}.SkipSimplifiedLayerNormalization",
    "ai.onnx.RMSNormalization",
    f"{CONTRIBUTED_DOMAIN}.QuickGelu",
    "ai.onnx.Softplus",
    "ai.onnx.RotaryEmbedding",
)

FASTER_ON_THE_CPU = FusedChoice(
    decode=_FASTER,
    prefill=_FASTER,
)
"""What ``auto`` takes: measured by benchmarks/lowerings.py with ONNX Runtime 1.32 at the 0.8B shape, in multiples of
the plain nodes' time in the same run; on two cores with AVX-512, and in brackets on two busy ones with AVX2.

| operator | 1 row | 8 rows | 64 rows |
| --- | --- | --- | --- |
| LinearAttention | 1.0 (0.5–1.1) | 0.7 | 0.5 (0.6–1.3) |
| SkipSimplifiedLayerNormalization | 0.6 (0.6) | 0.6 | 0.8 (0.4–0.9) |
| RMSNormalization, of a head | 0.7 | 0.5 | 0.6 (0.5) |
| RMSNormalization, unit norm | 0.8 (0.6) | 0.8 | 1.0 (0.6) |
| QuickGelu | 0.9 (0.6) | 0.8 | 0.8 (0.5) |
| Softplus | 0.7 (0.7) | 0.7 | 0.9 (0.8) |
| RotaryEmbedding | 0.6 (0.7) | 0.6 | 0.5 (0.5) |
| LinearAttentionGate | 0.9 (0.9) | 1.3 | 1.1 (2.4) |
| CausalConvWithState | 1.8 (1.3) | 1.7 (2–4) | 2.0 (1.2) |
| GroupQueryAttention over 512 cached rows | 2.7 (2.8) | 0.9 (2.5) | 1.1 (1.9) |

LinearAttention reads and writes the state once, where plain operators pass through it four times. CausalConvWithState
and GroupQueryAttention turn rows into columns and back, or both caches around, in every call. LinearAttentionGate gains
little, and needs ONNX Runtime 1.30 where the others run on 1.25.1.
"""

Probe = Callable[["FusedOperator", Sequence[Sequence[int | str]], Mapping[str, Any]], ProbeOutcome]


def check_lowering(lowering: str) -> None:
    """Raise RowpackError ``lowering_unknown`` for a word that is none of :data:`LOWERINGS`."""
    if lowering not in LOWERINGS:
        raise RowpackError(
            "lowering_unknown",
            "there is no such lowering",
            where="--lowering",
            found=repr(lowering),
            expected=", ".join(LOWERINGS),
            remedy="Name one of these, or leave --lowering out.",
        )


def refuse_fused(lowering: str, backend: str) -> FusedChoice:
    """Return the plain choice for a backend without fused operators; raises ``lowering_unsupported`` for ``fused``."""
    if lowering == "fused":
        raise RowpackError(
            "lowering_unsupported",
            "engines of this backend are compiled from plain operators",
            where="--lowering",
            found=f"fused, with --backend {backend}",
            expected="plain or auto",
            remedy="Leave --lowering out; the compiler fuses by itself.",
        )
    return PLAIN


def choose_fused_operators(
    lowering: str, exported: onnx.ModelProto, faster: FusedChoice, probe: Probe = probe_operator
) -> FusedChoice:
    """Return the operators for the engines made from ``exported``; ``faster`` is what ``auto`` would like.

    Raises RowpackError ``fused_operators_unused`` where ``fused`` has nothing to replace, and
    ``fused_operator_refused`` with every operator that is missing or wrong.
    """
    if lowering == "plain":
        return PLAIN
    calls = _mixer_calls(exported)
    wanted = {*faster.decode, *faster.prefill} if lowering == "auto" else None
    outcomes = [
        probe(operator, *calls[operator.replaced])
        for operator in _operators()
        if operator.replaced in calls and (wanted is None or operator.name in wanted)
    ]
    wrong = {outcome.operator for outcome in outcomes if outcome.refusal is not None}
    # One operator may replace two things: then it is to be right for both.
    usable = tuple(dict.fromkeys(outcome.operator for outcome in outcomes if outcome.operator not in wrong))
    if lowering == "auto":
        return FusedChoice(
            tuple(name for name in faster.decode if name in usable),
            tuple(name for name in faster.prefill if name in usable),
        )
    if not outcomes:
        raise RowpackError(
            "fused_operators_unused",
            "the runtime has no fused operator for the mixers of this model",
            where="--lowering",
            found=", ".join(sorted(calls)) or "no mixers",
            expected=", ".join(sorted({operator.replaced for operator in _operators()})),
            remedy="Build with --lowering plain or auto.",
        )
    refused = [_refusal(outcome) for outcome in outcomes if outcome.refusal is not None]
    if refused:
        message = "the installed runtime cannot run this model in its fused form"
        raise RowpackError.from_problems("fused_operator_refused", message, refused)
    return FusedChoice(usable, usable)


def _operators() -> tuple[FusedOperator, ...]:
    from rowpack.surgery.fused_operators import FUSED_OPERATORS

    return FUSED_OPERATORS


def _mixer_calls(exported: onnx.ModelProto) -> dict[str, tuple[list[list[int | str]], dict[str, Any]]]:
    """Return the shapes of the inputs and the attributes of each mixer's first call and each pattern's first match."""
    from rowpack.graph.model import FUNCTION_DOMAIN, import_graph
    from rowpack.surgery.fused_operators import PATTERNS

    calls: dict[str, tuple[list[list[int | str]], dict[str, Any]]] = {}
    graph = import_graph(exported)
    for pattern in PATTERNS:
        for match in pattern.find(graph)[:1]:
            calls[pattern.name] = (list(match.shapes), dict(match.attributes))
    for node in graph.nodes:
        if node.domain == FUNCTION_DOMAIN and node.op not in calls:
            calls[node.op] = ([list(tensor.shape) for tensor in node.inputs], dict(node.attrs))
    return calls


def _refusal(outcome: ProbeOutcome) -> Problem:
    return Problem(
        "fused_operator_refused",
        f"the installed runtime's {outcome.operator} does not do what the model needs",
        where="--lowering",
        found=outcome.refusal or "",
        expected="what the recurrence in float64 gives",
        remedy="Update the runtime, or build with --lowering plain or auto.",
    )
