"""Which fused operators a build uses: by what the installed runtime computes, never by what it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rowpack import BuildRequest
from rowpack.engines import BACKENDS, find_backend
from rowpack.engines.fused_operators.choice import FASTER_ON_THE_CPU, choose_fused_operators
from rowpack.engines.fused_operators.probe import ProbeOutcome, probe_operator
from rowpack.families.normalisation import rms_norm, unit_norm
from rowpack.graph.activations import silu, softplus
from rowpack.graph.emitter import Emitter, Tensor
from rowpack.graph.rotary import rotate_heads
from rowpack.onnx_ops import CACHED_ATTENTION, CAUSAL_CONV_STATE, GATED_DELTA_RULE
from rowpack.surgery.cached_attention_chunk import cached_attention_chunk
from rowpack.surgery.causal_conv import causal_conv_chunk
from rowpack.surgery.delta_rule_chunk import DeltaRuleChunk
from rowpack.surgery.fused_operators import FUSED_OPERATORS, FusedOperator
from rowpack.surgery.graph_form import PLAIN, FusedChoice
from rowpack.surgery.linear_attention_gate import DECAY_GATES
from rowpack.surgery.mixer_replacement import Lowering
from rowpack.surgery.residual_norm import RESIDUAL_NORM
from rowpack.surgery.root_mean_square_norm import RMS_NORM, UNIT_NORM
from rowpack.surgery.rotary_embedding import ROTARY
from rowpack.surgery.silu import SILU
from rowpack.surgery.softplus import SOFTPLUS
from rowpack_loaders.errors import RowpackError

BY_PLACE = {operator.replaced: operator for operator in FUSED_OPERATORS}
LINEAR_ATTENTION = BY_PLACE[GATED_DELTA_RULE]
CAUSAL_CONV = BY_PLACE[CAUSAL_CONV_STATE]
ATTENTION = BY_PLACE[CACHED_ATTENTION]
RESIDUAL = BY_PLACE[RESIDUAL_NORM.name]
NORM, UNIT = BY_PLACE[RMS_NORM.name], BY_PLACE[UNIT_NORM.name]
GATES = BY_PLACE[DECAY_GATES.name]
TURN = BY_PLACE[ROTARY.name]

ROWS: list[int | str] = ["rows", 4]
ANGLES: list[int | str] = ["rows", 1, 8]
CALLS: dict[str, tuple[list[list[int | str]], dict[str, Any]]] = {
    GATED_DELTA_RULE: ([["rows", 64], ["rows", 64], ["rows", 64], ROWS, ROWS, [4, 32, 16]], {}),
    CAUSAL_CONV_STATE: ([["rows", 48], [48, 4], [48, 4]], {}),
    CACHED_ATTENTION: (
        [["rows", 128], ["rows", 64], ["rows", 64], ["c", 64], ["c", 64], ["rows", "c+rows"]],
        {"head_dim": 32},
    ),
    RESIDUAL_NORM.name: ([["rows", 96], ["rows", 96], [96]], {"epsilon": 1e-6}),
    RMS_NORM.name: ([["rows", 96], [96]], {"epsilon": 1e-6}),
    UNIT_NORM.name: ([["rows", 96]], {"epsilon": 1e-6, "width": 96}),
    SILU.name: ([["rows", 96]], {}),
    DECAY_GATES.name: ([ROWS, ROWS, [4], [4]], {}),
    SOFTPLUS.name: ([["rows", 96]], {}),
    ROTARY.name: ([["rows", 2, 32], ANGLES, ANGLES], {"heads": 2, "dim": 32, "rotary_dim": 16}),
}


def plain_residual_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    x, skip, weight = inputs
    total = emitter.op("Add", [x, skip], "sum")
    return [rms_norm(emitter, total, weight, attributes["epsilon"]), total]


def plain_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    return [rms_norm(emitter, inputs[0], inputs[1], attributes["epsilon"])]


def plain_unit_norm(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    return [unit_norm(emitter, inputs[0], attributes["epsilon"])]


def plain_silu(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    return [silu(emitter, inputs[0], "silu", "float32")]


def plain_softplus(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    return [softplus(emitter, inputs[0], "softplus")]


def plain_gates(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    b, a, dt_bias, decay_rate = inputs
    total = softplus(emitter, emitter.op("Add", [a, dt_bias], "step"), "softplus")
    return [emitter.op("Sigmoid", [b], "beta"), emitter.op("Mul", [total, decay_rate], "decay")]


def plain_rotary(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    return [rotate_heads(emitter, *inputs, attributes["rotary_dim"] // 2, attributes["dim"])]


PLAIN_FORMS: dict[str, Lowering] = {
    GATED_DELTA_RULE: DeltaRuleChunk(64),
    CAUSAL_CONV_STATE: causal_conv_chunk,
    CACHED_ATTENTION: cached_attention_chunk,
    RESIDUAL_NORM.name: plain_residual_norm,
    RMS_NORM.name: plain_norm,
    UNIT_NORM.name: plain_unit_norm,
    SILU.name: plain_silu,
    DECAY_GATES.name: plain_gates,
    SOFTPLUS.name: plain_softplus,
    ROTARY.name: plain_rotary,
}


def refused(outcomes: Mapping[str, str]) -> Any:
    """Return a probe that refuses the operators of ``outcomes`` for the reasons given."""

    def probe(
        operator: FusedOperator, shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]
    ) -> ProbeOutcome:
        return ProbeOutcome(operator.name, outcomes.get(operator.name))

    return probe


@pytest.mark.parametrize("operator", FUSED_OPERATORS, ids=lambda operator: operator.replaced)
def test_the_installed_runtime_passes_its_probes(operator: FusedOperator) -> None:
    outcome = probe_operator(operator, *CALLS[operator.replaced])
    assert outcome.refusal is None
    assert outcome.worst_error is not None
    assert 0 < outcome.worst_error < 1e-5


@pytest.mark.parametrize("operator", FUSED_OPERATORS, ids=lambda operator: operator.replaced)
def test_plain_forms_pass_the_same_probes(operator: FusedOperator) -> None:
    """The probe asks no more of a fused operator than of what it replaces."""
    plain = FusedOperator(operator.name, operator.replaced, PLAIN_FORMS[operator.replaced], 200)
    assert probe_operator(plain, *CALLS[operator.replaced]).refusal is None


def test_a_runtime_without_the_operator_is_told_from_one_that_has_it() -> None:
    def unknown(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
        x, state, _ = inputs
        return [emitter.op("NobodyKnows", [x], "out", domain="com.microsoft"), state]

    outcome = probe_operator(FusedOperator("x", CAUSAL_CONV.replaced, unknown, 9), *CALLS[CAUSAL_CONV.replaced])
    assert outcome.refusal is not None
    assert "cannot run it" in outcome.refusal
    assert "NobodyKnows" in outcome.refusal
    assert outcome.worst_error is None


def bent(operator: FusedOperator, change: Any) -> FusedOperator:
    """Return the operator with what it is given changed: (emitter, inputs) → inputs."""

    def lowering(emitter: Emitter, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> Sequence[Tensor]:
        return operator.lowering(emitter, change(emitter, list(inputs)), attributes)

    return FusedOperator(operator.name, operator.replaced, lowering, operator.node_budget)


def scaled(index: int, factor: float) -> Any:
    def change(emitter: Emitter, inputs: list[Tensor]) -> list[Tensor]:
        before = inputs[index]
        inputs[index] = emitter.op(
            "Mul", [before, emitter.floats("factor", factor, scalar=True)], "bent", dtype="float32", shape=before.shape
        )
        return inputs

    return change


@pytest.mark.parametrize(
    ("operator", "index", "factor"),
    [
        (LINEAR_ATTENTION, 3, 1 + 1e-4),  # a decay gate of low precision
        (LINEAR_ATTENTION, 4, 1 - 1e-4),  # a strength rounded to half precision
        (LINEAR_ATTENTION, 5, 0.0),  # a state that is not carried
        (CAUSAL_CONV, 1, 0.0),
        (CAUSAL_CONV, 2, 1 + 1e-5),
        (ATTENTION, 3, 0.0),  # a cache that is not read
        (RESIDUAL, 2, 1 + 1e-5),
        (RESIDUAL, 1, 0.0),
        (NORM, 1, 1 + 1e-5),
        (UNIT, 0, 1.5),  # rows below epsilon tell a wrong epsilon
        (GATES, 1, 1 + 1e-4),
        (GATES, 3, 1 + 1e-4),
        (TURN, 1, 1 + 1e-4),
        (TURN, 2, -1.0),  # turned the other way
    ],
)
def test_wrong_arithmetic_is_found(operator: FusedOperator, index: int, factor: float) -> None:
    shapes, attributes = CALLS[operator.replaced]
    outcome = probe_operator(bent(operator, scaled(index, factor)), shapes, attributes)
    assert outcome.refusal is not None
    assert "relative error" in outcome.refusal
    assert outcome.worst_error is not None
    assert outcome.worst_error > 1e-6


def test_nan_is_a_deviation() -> None:
    outcome = probe_operator(bent(LINEAR_ATTENTION, scaled(2, float("nan"))), *CALLS[LINEAR_ATTENTION.replaced])
    assert outcome.refusal is not None
    assert outcome.worst_error == float("inf")


def test_plain_asks_the_runtime_nothing(qwen_exported: onnx.ModelProto) -> None:
    def never(*_: Any) -> ProbeOutcome:
        raise AssertionError("the runtime was asked")

    assert choose_fused_operators("plain", qwen_exported, FASTER_ON_THE_CPU, never) == PLAIN


def test_fused_takes_everything_and_auto_what_is_faster(qwen_exported: onnx.ModelProto) -> None:
    names = tuple(dict.fromkeys(operator.name for operator in FUSED_OPERATORS))
    everything = FusedChoice(names, names)
    assert choose_fused_operators("fused", qwen_exported, FASTER_ON_THE_CPU, refused({})) == everything
    assert choose_fused_operators("auto", qwen_exported, FASTER_ON_THE_CPU, refused({})) == FASTER_ON_THE_CPU
    only_decode = FusedChoice(decode=(CAUSAL_CONV.name,))
    assert choose_fused_operators("auto", qwen_exported, only_decode, refused({})) == only_decode


def test_auto_stays_plain_where_the_runtime_is_wrong(qwen_exported: onnx.ModelProto) -> None:
    wrong = refused({LINEAR_ATTENTION.name: "relative error 1e-2"})
    kept = tuple(name for name in FASTER_ON_THE_CPU.prefill if name != LINEAR_ATTENTION.name)
    assert len(kept) == len(FASTER_ON_THE_CPU.prefill) - 1
    assert choose_fused_operators("auto", qwen_exported, FASTER_ON_THE_CPU, wrong) == FusedChoice(kept, kept)
    every = refused(dict.fromkeys(FASTER_ON_THE_CPU.prefill, "the runtime cannot run it"))
    assert choose_fused_operators("auto", qwen_exported, FASTER_ON_THE_CPU, every) == PLAIN


def test_an_operator_that_is_wrong_in_one_of_its_places_is_used_in_none(qwen_exported: onnx.ModelProto) -> None:
    assert NORM.name == UNIT.name

    def wrong_for_unit_norms(
        operator: FusedOperator, shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]
    ) -> ProbeOutcome:
        return ProbeOutcome(operator.name, "wrong" if operator.replaced == UNIT.replaced else None)

    chosen = choose_fused_operators("auto", qwen_exported, FASTER_ON_THE_CPU, wrong_for_unit_norms)
    assert NORM.name not in chosen.prefill
    assert LINEAR_ATTENTION.name in chosen.prefill


def test_fused_names_every_operator_that_is_wrong(qwen_exported: onnx.ModelProto) -> None:
    wrong = refused({LINEAR_ATTENTION.name: "relative error 1e-2", ATTENTION.name: "the runtime cannot run it"})
    with pytest.raises(RowpackError) as caught:
        choose_fused_operators("fused", qwen_exported, FASTER_ON_THE_CPU, wrong)
    assert caught.value.code == "fused_operator_refused"
    assert [problem.code for problem in caught.value.problems] == ["fused_operator_refused"] * 2
    text = str(caught.value)
    assert LINEAR_ATTENTION.name in text
    assert "relative error 1e-2" in text
    assert ATTENTION.name in text
    assert CAUSAL_CONV.name not in text


def test_a_model_without_such_mixers(rwkv_exported: onnx.ModelProto) -> None:
    assert choose_fused_operators("auto", rwkv_exported, FASTER_ON_THE_CPU) == PLAIN
    with pytest.raises(RowpackError) as caught:
        choose_fused_operators("fused", rwkv_exported, FASTER_ON_THE_CPU)
    assert caught.value.code == "fused_operators_unused"


def test_backends_that_compile_take_plain_operators_only(qwen_exported: onnx.ModelProto) -> None:
    compiling = [backend for backend in BACKENDS if backend.name != "ort"]
    assert compiling
    for backend in compiling:
        assert backend.fused_operators("auto", qwen_exported) == PLAIN
        with pytest.raises(RowpackError) as caught:
            backend.fused_operators("fused", qwen_exported)
        assert caught.value.code == "lowering_unsupported"


def test_the_choice_of_onnx_runtime_is_reproducible(qwen_exported: onnx.ModelProto) -> None:
    backend = find_backend("ort")
    assert backend.fused_operators("auto", qwen_exported) == FASTER_ON_THE_CPU
    assert backend.fused_operators("auto", qwen_exported) == backend.fused_operators("auto", qwen_exported)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(RowpackError) as caught:
        BuildRequest(Path("checkpoint"), Path("out.bundle"), lowering="fast")
    assert caught.value.code == "lowering_unknown"
    assert "plain, fused, auto" in str(caught.value)


def test_probe_inputs_have_the_hard_cases() -> None:
    from rowpack.engines.fused_operators.probe_inputs import probe_plan

    plan = probe_plan(LINEAR_ATTENTION.replaced, *CALLS[LINEAR_ATTENTION.replaced])
    cases = {case.name: case for case in plan.cases}
    repeated = cases["one token repeated"].rows["k"]
    assert np.array_equal(repeated[0], repeated[-1])
    assert cases["decay 1e-12 a row"].rows["decay"].max() < -27
    keys = cases["nearly parallel keys"].rows["k"][:, :32]
    assert (keys @ keys[0]).min() > 0.999
    assert np.abs(cases["random"].state["state"]).max() > 0.5, "a carried state that is zero shows nothing"


def test_the_exported_graph_tells_the_geometry_of_its_mixers(qwen_exported: onnx.ModelProto) -> None:
    seen: dict[str, Any] = {}

    def note(
        operator: FusedOperator, shapes: Sequence[Sequence[int | str]], attributes: Mapping[str, Any]
    ) -> ProbeOutcome:
        seen[operator.name] = (shapes, dict(attributes))
        return ProbeOutcome(operator.name, None)

    choose_fused_operators("fused", qwen_exported, FASTER_ON_THE_CPU, note)
    state = seen[LINEAR_ATTENTION.name][0][5]
    assert all(isinstance(extent, int) for extent in state)
    assert seen[ATTENTION.name][1].keys() == {"head_dim"}
