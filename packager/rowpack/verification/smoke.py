"""Run the graphs of a bundle that is not published yet, and compare three ways to the same answer.

Engines that are graphs run on their own runtime. Plans of a compiling backend run on the machine they are for, and
bfloat16 graphs on a processor with such products; elsewhere ONNX Runtime executes the very graphs that they are or were
compiled from, and the manifest says so (``self_test.executed``).

The exported graph (mixers row by row, as defined) is the reference, computed in float32 where it is in bfloat16; the
decode engine's token loop and the prefill engine's chunks must give its logits, and its greedy tokens wherever the
reference's choice is not a near tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rowpack.engines.backend import Executed
from rowpack.engines.io_contract import DECODE, PREFILL
from rowpack.verification.prompts import smoke_prompts
from rowpack.verification.runnable_graphs import reference, runnable
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.golden import GoldenCase
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.mapped_section import MappedSection
from rowpack_loaders.model_description import APPEND_ROWS, ModelDescription, describe_model
from rowpack_loaders.runtimes import RUNTIMES, load_runtime
from rowpack_loaders.session import PrefillMode, Session

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import Runtime

GRAPH_RUNTIME = "ort"
"""What executes graphs on a build machine."""

_REPORT = "please report it with the checkpoint's name."
_REMEDY = f"Build again; if it fails again, {_REPORT}"
_BFLOAT16_REMEDY = f"Build with --precision fp32, roundings may move this model too far; if that fails too, {_REPORT}"

GREEDY_TOKENS = 8
TOP_LOGITS = 5

LOOP_READ_LIMIT_BYTES = 48 * 2**30
"""Weights that token loops over whole prompts may read: a prompt beyond it runs in chunks and continues in steps.

A step reads every weight once, so a loop over 64 rows of a 36 GB model would take longer than the rest of its build.
"""

_TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}

_QUANTIZED_TOLERANCE = 0.25
"""A value near the border of two eight-bit ones is rounded up in one order of the sums and down in the other, which
moves it by a sixteenth (E4M3) or a 127th of its block's largest (rows of MatMulNBits). Measured between graphs that
mean the same: at most 0.1, on the small trained models as on a random one in the shape of Qwen3.5-0.8B in int4.
"""

_FLOAT4_TOLERANCE = 0.5
"""The same with the sixteen values of E2M1, a step of which is a third. Graphs run in float32 throughout for it: chunks
then agree to the last digit as a rule, and the token loop too but for a model with attention, whose caches round every
row to half precision; there up to 0.37 was measured on the trained one of 4 million parameters.
"""


def tolerance(precision: str, quantization: str | None = None) -> float:
    """Return how far a logit may be off, relative to the row's largest magnitude, for one precision.

    fp32 is the project's bar for whole models; the half precisions carry their own rounding (2^-11, 2^-8) through
    every layer, and differently in each order of the sums.
    """
    quantized = {None: 0.0, "nvfp4": _FLOAT4_TOLERANCE}.get(quantization, _QUANTIZED_TOLERANCE)
    return max(_TOLERANCES[precision], quantized)


def remedy_of_differences(precision: str, quantization: str | None = None) -> str:
    """Return what to do about engines that differ; projections in fp8 and nvfp4 are not built in fp32."""
    return _BFLOAT16_REMEDY if precision == "bf16" and quantization is None else _REMEDY


@dataclass(frozen=True)
class SmokeResult:
    """What the smoke run found: the golden cases, and the largest relative logit difference a way.

    ``executed`` says whether the engines themselves ran, or only their graphs on another runtime.
    """

    cases: tuple[GoldenCase, ...]
    worst_error: Mapping[str, float]
    executed: Executed


def verify_engines(
    manifest: dict[str, object],
    engines: Mapping[str, bytes],
    exported: bytes,
    weights: MappedSection,
    on_case: Callable[[str], None] = lambda kind: None,
    *,
    quantization: str | None = None,
    reference_weights: MappedSection | None = None,
) -> SmokeResult:
    """Compare token loop and chunks with the exported graph on the smoke prompts.

    Every case goes through the chunks and then decodes step by step; the token loop takes the prompts that are
    short for the model's size, on the decode engine alone where the prefill engine would serve its steps.
    ``manifest`` is the draft with everything a runtime reads; ``engines`` maps roles to ONNX bytes; what the
    runtime has no operators for runs by others that mean the same. ``reference_weights`` are the exported graph's
    where they are others than the engines'. Raises RowpackError
    ``verification_failed`` with every difference found.
    """
    model = describe_model(manifest)
    limit = tolerance(model.precision, quantization)
    remedy = remedy_of_differences(model.precision, quantization)
    exported = reference(exported, model.precision)
    references = _reference_cases(model, engines, exported, reference_weights or weights, limit, on_case)
    problems: list[Problem] = []
    worst: dict[str, float] = {}
    executed: Executed = "engines"
    loop_rows = max(LOOP_READ_LIMIT_BYTES // max(model.resident_bytes[DECODE].weights, 1), 1)
    for ways, roles in _runs(model, engines):
        loaded, executed = _engine_runtime(model, {role: engines[role] for role in roles}, weights)
        for way in ways:
            is_loop_beside_chunks = way == "token-loop" and PREFILL in engines
            cases = [
                (case, logits)
                for case, logits in references
                if not (is_loop_beside_chunks and len(case.prompt_ids) > loop_rows)
            ]
            worst[way], found = _compare(model, loaded, way, cases, limit, remedy, on_case)
            problems.extend(found)
        del loaded  # before the next is: each may hold a copy of the weights
    if problems:
        raise RowpackError.from_problems(
            "verification_failed",
            "the engines do not compute what the exported model computes; nothing was published",
            problems,
        )
    return SmokeResult(tuple(case for case, _ in references), worst, executed)


def _compare(
    model: ModelDescription,
    runtime: Runtime,
    way: PrefillMode,
    cases: Sequence[tuple[GoldenCase, npt.NDArray[np.float32]]],
    limit: float,
    remedy: str,
    on_case: Callable[[str], None],
) -> tuple[float, list[Problem]]:
    """Run ``cases`` one way; return the largest relative logit difference, and every difference beyond the limit."""
    worst, problems = 0.0, []
    for case, logits in cases:
        on_case(case.kind)
        session = Session(model, runtime)
        found = session.prefill(case.prompt_ids, mode=way)
        error = _relative_error(found, logits)
        worst = max(worst, error)
        if error <= limit:
            problems.extend(_token_problems(session, found, case, way, limit, remedy))
        else:
            problems.append(_logits_problem(case.kind, way, len(case.prompt_ids), error, limit, remedy))
    return worst, problems


def _runs(model: ModelDescription, engines: Mapping[str, bytes]) -> list[tuple[list[PrefillMode], list[str]]]:
    """Return what is run after each other: the ways through prompts, and the engines loaded for them.

    A decode engine beside a prefill engine that serves its steps is run alone, as whoever loads no prefill engine does.
    """
    if PREFILL not in engines:
        return [(["token-loop"], [DECODE])]
    if model.prefill_serves_decode:
        return [(["chunked"], [PREFILL]), (["token-loop"], [DECODE])]
    return [(["token-loop", "chunked"], [DECODE, PREFILL])]


def _engine_runtime(
    model: ModelDescription, engines: Mapping[str, bytes], weights: MappedSection
) -> tuple[Runtime, Executed]:
    """Load the engines with their own runtime where they are graphs and this machine runs them, else their graphs."""
    backend = model.engines[DECODE].backend
    if not RUNTIMES[backend].on_gpu:
        try:
            return load_runtime(backend, model, engines, weights), "engines"
        except RowpackError as error:
            if error.code != "cpu_feature_missing":
                raise
    graphs = {role: runnable(graph, model.precision) for role, graph in engines.items()}
    return load_runtime(GRAPH_RUNTIME, model, graphs, weights), "graphs"


def _reference_cases(
    model: ModelDescription,
    engines: Mapping[str, bytes],
    exported: bytes,
    weights: MappedSection,
    limit: float,
    on_case: Callable[[str], None],
) -> list[tuple[GoldenCase, npt.NDArray[np.float32]]]:
    """Run every prompt on the exported graph, which is gone again when the engines are loaded.

    A session holds half-precision weights widened and for itself: three at once would be six times the model.
    """
    session = Session(model, _reference_runtime(model, engines, exported, weights))
    cases = []
    for kind, prompt in smoke_prompts(model.vocab_size, model.limits.prefill_rows):
        if model.bounded_rows is not None and len(prompt) + GREEDY_TOKENS > model.bounded_rows:
            continue
        on_case(f"{kind}, reference")
        cases.append(_reference_case(session, kind, prompt, limit))
    return cases


def _reference_runtime(
    model: ModelDescription, engines: Mapping[str, bytes], exported: bytes, weights: MappedSection
) -> Runtime:
    """Load the exported graph in place of each engine: it takes any number of rows, and the filled cache rows."""
    caches = {state.input for state in model.states if state.update == APPEND_ROWS}

    def with_free_caches(engine: EngineRecord) -> EngineRecord:
        inputs = tuple(
            replace(tensor, shape=("cache_rows", *tensor.shape[1:])) if tensor.name in caches else tensor
            for tensor in engine.inputs
        )
        return replace(engine, inputs=inputs)

    free = replace(model, engines={role: with_free_caches(engine) for role, engine in model.engines.items()})
    return load_runtime(GRAPH_RUNTIME, free, dict.fromkeys(engines, exported), weights)


def _reference_case(
    session: Session, kind: str, prompt: tuple[int, ...], limit: float
) -> tuple[GoldenCase, npt.NDArray[np.float32]]:
    """Run one prompt and greedy tokens on the exported graph; return the case and the prompt's last-row logits.

    The tokens end before the first near tie, which rounding may decide either way on another machine.
    """
    logits = session.prefill(prompt).copy()
    _require_finite(kind, logits)
    top = np.argsort(-logits, kind="stable")[:TOP_LOGITS]
    greedy: list[int] = []
    smallest_gap = float("inf")
    row = logits
    while len(greedy) < GREEDY_TOKENS:
        second, first = np.partition(row, -2)[-2:]
        gap = float(first - second)
        if greedy and gap <= 2 * limit * _scale(row):
            break
        smallest_gap = min(smallest_gap, gap)
        greedy.append(int(np.argmax(row)))
        row = session.step(greedy[-1])
    top_logits = tuple((int(index), round(float(logits[index]), 5)) for index in top)
    return GoldenCase(kind, prompt, tuple(greedy), top_logits, round(smallest_gap, 5)), logits


def _token_problems(
    session: Session, logits: npt.NDArray[np.float32], case: GoldenCase, way: str, limit: float, remedy: str
) -> list[Problem]:
    """Feed the reference's tokens and report the first step that would have chosen another one."""
    row = logits
    for index, expected in enumerate(case.greedy_ids):
        chosen = int(np.argmax(row))
        near_tie = float(row[chosen] - row[expected]) <= 2 * limit * _scale(row)
        if chosen != expected and not near_tie:
            return [
                Problem(
                    "verification_failed",
                    f"a greedy token differs ({way})",
                    f"prompt {case.kind!r}, new token {index}",
                    f"token {chosen}",
                    f"token {expected}",
                    remedy,
                )
            ]
        row = session.step(expected)
    return []


def _relative_error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the largest difference over the largest expected magnitude; NaN where anything is not finite."""
    return float(np.abs(found.astype(np.float64) - expected).max() / _scale(expected))


def _scale(logits: npt.NDArray[np.float32]) -> float:
    return max(float(np.abs(logits).max()), 1e-30)


def _require_finite(kind: str, logits: npt.NDArray[Any]) -> None:
    if not np.isfinite(logits).all():
        raise RowpackError(
            "verification_not_finite",
            "the exported model gives logits that are not finite; nothing was published",
            where=f"prompt {kind!r}",
            found="NaN or infinity",
            expected="finite logits",
            remedy="In fp16 a model can leave the range: build with --precision fp32, or bf16 where projections are in "
            "fp8 or nvfp4.",
        )


def _logits_problem(kind: str, way: str, rows: int, error: float, limit: float, remedy: str) -> Problem:
    return Problem(
        "verification_failed",
        f"the last row's logits differ ({way})",
        f"prompt {kind!r} of {rows} rows",
        f"relative difference {error:.3g}",
        f"at most {limit:.3g}",
        remedy,
    )
