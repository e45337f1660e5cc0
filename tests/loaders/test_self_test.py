"""The self-test: passes on a right engine, fails on wrong tokens, wrong logits and NaN."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_models import HYBRID, ToyModel, reference_greedy, reference_logits, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.golden import GoldenCase, GoldenVectors, encode_golden
from rowpack_loaders.selftest import run_self_test


def reference_case(prompt: list[int], kind: str = "text") -> GoldenCase:
    logits = reference_logits(HYBRID, prompt)
    top = np.argsort(-logits)[:5]
    return GoldenCase(
        kind,
        tuple(prompt),
        tuple(reference_greedy(HYBRID, prompt, 8)),
        tuple((int(token_id), float(logits[token_id])) for token_id in top),
        1.0,
    )


CASES = (reference_case([3, 1, 4]), reference_case([7] * 130, "repeat"))
VECTORS = GoldenVectors("toy reference", "1", CASES)


def test_a_right_engine_passes_in_both_modes(tmp_path: Path) -> None:
    path = write_toy_bundle(tmp_path / "g.bundle", HYBRID, {"golden.msgpack.zst": encode_golden(VECTORS)})
    with load(path, threads=1) as decoder:
        report = run_self_test(decoder)
    assert report.passed
    assert [(result.kind, result.mode) for result in report.results] == [
        ("text", "chunked"),
        ("text", "token-loop"),
        ("repeat", "chunked"),
        ("repeat", "token-loop"),
    ]
    assert all(result.tokens_equal and result.relative_logit_error < 1e-5 for result in report.results)
    assert report.reference == "toy reference 1"
    plain = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert plain["passed"] is True
    assert plain["failed"] == 0
    assert len(plain["results"]) == 4


def changed(**changes: Any) -> GoldenVectors:
    return GoldenVectors("toy", "1", (replace(CASES[0], **changes), CASES[1]))


def test_another_token_fails_and_says_where(hybrid: Decoder) -> None:
    tokens = list(CASES[0].greedy_ids)
    tokens[5] = (tokens[5] + 1) % 40
    report = run_self_test(hybrid, changed(greedy_ids=tuple(tokens)))
    assert not report.passed
    assert report.results[0].first_difference == 5
    assert report.as_json()["failed"] == 2


def test_a_tie_within_the_tolerance_may_go_either_way(hybrid: Decoder) -> None:
    tokens = (*CASES[0].greedy_ids[:-1], 39)
    report = run_self_test(hybrid, changed(greedy_ids=tokens, smallest_top2_gap=1e-6))
    assert report.results[0].near_tie
    assert not report.results[0].tokens_equal
    assert report.passed


def test_logits_beyond_the_tolerance_fail(hybrid: Decoder) -> None:
    (first, logit), *rest = CASES[0].last_row_top
    vectors = changed(last_row_top=((first, logit * 1.001), *rest))
    assert not run_self_test(hybrid, vectors).passed
    assert run_self_test(hybrid, vectors, relative_tolerance=1e-2).passed


def test_nan_logits_fail_and_are_still_json(hybrid: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = hybrid.runtime
    real = runtime.open_sequence

    def broken(**options: Any) -> Any:
        sequence = real(**options)
        monkeypatch.setattr(sequence, "run_chunk", lambda ids: np.full(40, np.nan, dtype=np.float32))
        return sequence

    monkeypatch.setattr(runtime, "open_sequence", broken)
    report = run_self_test(hybrid, VECTORS)
    assert not report.passed
    assert [result.passed for result in report.results] == [False, True, False, True]
    results: Any = report.as_json()["results"]
    assert results[0]["relative_logit_error"] is None
    json.dumps(report.as_json(), allow_nan=False)


def test_no_case_is_not_a_pass(tmp_path: Path) -> None:
    path = write_toy_bundle(tmp_path / "short.bundle", ToyModel(capacity=64))
    with load(path, threads=1) as decoder:
        report = run_self_test(decoder, GoldenVectors("toy", "1", CASES[1:]))
    assert report.skipped_cases == 1
    assert not report.passed


def test_a_bundle_without_vectors_is_refused(hybrid: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        run_self_test(hybrid)
    assert caught.value.code == "golden_missing"


def test_vectors_of_another_vocabulary_are_refused(hybrid: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        run_self_test(hybrid, changed(last_row_top=((40, 1.0),)))
    assert caught.value.code == "golden_invalid"
