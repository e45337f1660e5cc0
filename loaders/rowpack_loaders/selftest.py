"""Replay a bundle's golden vectors on this runtime, chunked and token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rowpack_loaders.decoder import Decoder, read_checked_section
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.generation import choose_tokens
from rowpack_loaders.golden import GOLDEN_SECTION, GoldenCase, GoldenVectors, decode_golden
from rowpack_loaders.manifest import MANIFEST_SECTION
from rowpack_loaders.manifest_fields import Fields
from rowpack_loaders.sampling import Sampler, SamplingParameters
from rowpack_loaders.session import Session

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray

DEFAULT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class SelfTestResult:
    """One case in one prefill mode.

    ``first_difference`` is the index of the first new token that differs, None when all are equal.
    ``relative_logit_error`` is the largest difference among the stored logits of the prompt's last row,
    divided by the largest of them; None when a logit is not finite. ``near_tie`` says that tokens may
    differ because the reference itself chose between logits closer than the tolerance.
    """

    kind: str
    prompt_tokens: int
    mode: str
    tokens_equal: bool
    first_difference: int | None
    relative_logit_error: float
    near_tie: bool
    passed: bool


@dataclass(frozen=True)
class SelfTestReport:
    """Every case in every mode that this runtime has, and the verdict."""

    bundle: str
    backend: str
    backend_version: str
    reference: str
    relative_tolerance: float
    skipped_cases: int
    results: tuple[SelfTestResult, ...]

    @property
    def passed(self) -> bool:
        """True when there are results and every one of them passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    def as_json(self) -> dict[str, object]:
        """Return the object that ``rowpack selftest --json`` prints."""
        return {
            "bundle": self.bundle,
            "backend": self.backend,
            "backend_version": self.backend_version,
            "reference": self.reference,
            "relative_tolerance": self.relative_tolerance,
            "passed": self.passed,
            "skipped_cases": self.skipped_cases,
            "failed": sum(not result.passed for result in self.results),
            "results": [_as_json(result) for result in self.results],
        }


def read_golden_vectors(decoder: Decoder) -> GoldenVectors:
    """Return the vectors in the decoder's bundle; raise ``golden_missing`` when it was built without
    verification.
    """
    bundle = decoder.bundle
    if bundle is None or GOLDEN_SECTION not in bundle.sections:
        raise RowpackError(
            "golden_missing",
            "The bundle carries no golden vectors to test against",
            where=decoder.model.model_id,
            found="no golden vectors",
            expected=f"a section {GOLDEN_SECTION}",
            remedy="Build the bundle without --no-verify",
        )
    return decode_golden(read_checked_section(bundle, GOLDEN_SECTION), where=f"{bundle.path}: {GOLDEN_SECTION}")


def run_self_test(
    decoder: Decoder, vectors: GoldenVectors | None = None, *, relative_tolerance: float | None = None
) -> SelfTestReport:
    """Replay ``vectors`` (default: the bundle's own) through every prefill mode the decoder has.

    ``relative_tolerance`` bounds the logits' error and defaults to the manifest's. Cases that do not fit
    in the cache of this bundle are skipped and counted. Raises what running raises; a wrong answer is a
    result, not an error.
    """
    vectors = read_golden_vectors(decoder) if vectors is None else vectors
    tolerance = _manifest_tolerance(decoder) if relative_tolerance is None else relative_tolerance
    session = decoder.session()
    fitting = [case for case in vectors.cases if _fits(decoder, case)]
    modes: list[Literal["chunked", "token-loop"]] = ["token-loop"]
    if decoder.runtime.has_prefill_engine:
        modes.insert(0, "chunked")
    return SelfTestReport(
        bundle=str(decoder.bundle.path) if decoder.bundle else decoder.model.model_id,
        backend=decoder.runtime.backend,
        backend_version=decoder.runtime.backend_version,
        reference=f"{vectors.producer_name} {vectors.producer_version}",
        relative_tolerance=tolerance,
        skipped_cases=len(vectors.cases) - len(fitting),
        results=tuple(replay_case(session, case, mode, tolerance) for case in fitting for mode in modes),
    )


def replay_case(
    session: Session, case: GoldenCase, mode: Literal["chunked", "token-loop"], relative_tolerance: float
) -> SelfTestResult:
    """Run one case from the start of ``session`` and compare tokens and logits."""
    logits = session.prefill(case.prompt_ids, mode=mode)
    error = relative_logit_error(logits, case)
    difference: int | None = 0
    if math.isfinite(error):
        token_ids, _ = choose_tokens(
            session, logits, max_new_tokens=len(case.greedy_ids), sampler=Sampler(SamplingParameters())
        )
        difference = _first_difference(token_ids, case.greedy_ids)
    near_tie = case.smallest_top2_gap <= 2 * relative_tolerance * _scale(case)
    return SelfTestResult(
        kind=case.kind,
        prompt_tokens=len(case.prompt_ids),
        mode=mode,
        tokens_equal=difference is None,
        first_difference=difference,
        relative_logit_error=error,
        near_tie=near_tie,
        passed=error <= relative_tolerance and (difference is None or near_tie),
    )


def relative_logit_error(logits: FloatArray, case: GoldenCase) -> float:
    """Return the largest difference from the stored logits over the largest of them; None for NaN or
    infinity.
    """
    ids = np.array([token_id for token_id, _ in case.last_row_top])
    if ids.max() >= len(logits):
        raise RowpackError(
            "golden_invalid",
            "A golden case names a token outside the vocabulary",
            where=case.kind,
            found=str(ids.max()),
            expected=f"at most {len(logits) - 1}",
        )
    if not np.isfinite(logits).all():
        return math.inf
    expected = np.array([logit for _, logit in case.last_row_top])
    return float(np.abs(logits[ids] - expected).max() / _scale(case))


def _manifest_tolerance(decoder: Decoder) -> float:
    manifest = decoder.bundle.manifest if decoder.bundle else {}
    self_test = Fields(manifest, "", MANIFEST_SECTION).optional_child("self_test")
    return DEFAULT_TOLERANCE if self_test is None else self_test.number("last_row_relative_tolerance")


def _as_json(result: SelfTestResult) -> dict[str, object]:
    # JSON has no infinity.
    error = result.relative_logit_error if math.isfinite(result.relative_logit_error) else None
    return {**asdict(result), "relative_logit_error": error}


def _scale(case: GoldenCase) -> float:
    largest = max(abs(logit) for _, logit in case.last_row_top)
    return max(largest, float(np.finfo(np.float32).tiny))


def _first_difference(found: Sequence[int], expected: Sequence[int]) -> int | None:
    pairs = enumerate(zip(found, expected, strict=True))
    return next((index for index, (left, right) in pairs if left != right), None)


def _fits(decoder: Decoder, case: GoldenCase) -> bool:
    capacity = decoder.model.bounded_rows
    return capacity is None or len(case.prompt_ids) + len(case.greedy_ids) <= capacity
