"""The benchmark: what it runs, what it reports, what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rowpack_loaders import RowpackError
from rowpack_loaders.benchmark import run_benchmark
from rowpack_loaders.decoder import Decoder


def test_a_split_bundle_is_timed_both_ways(hybrid: Decoder) -> None:
    told: list[tuple[int, int]] = []
    report = run_benchmark(hybrid, prompt_tokens=70, new_tokens=3, repeats=2, on_repeat=lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]
    plain: Any = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert [figure["mode"] for figure in plain["prefill"]] == ["chunked", "token-loop"]
    assert plain["prefill"][0]["chunks"] == [64, 6]
    assert plain["prefill"][1]["chunks"] == [1] * 70
    for figure in plain["prefill"]:
        assert 0 < figure["best_ms"] <= figure["median_ms"]
        assert figure["tokens_per_second"] == pytest.approx(70 / figure["median_ms"] * 1e3, rel=0.01)
    assert plain["decode"]["steps"] == 3
    assert 0 < plain["decode"]["best_ms_per_token"] <= plain["decode"]["median_ms_per_token"]
    chunked, looped = (figure["median_ms"] for figure in plain["prefill"])
    assert plain["prefill_speedup"] == pytest.approx(looped / chunked, rel=0.01)
    assert plain["threads"] == 1
    for key in ("processor", "python_version", "backend_version", "rowpack_version", "model_id"):
        assert plain[key]


def test_a_single_bundle_has_one_way(hybrid_single: Decoder) -> None:
    report = run_benchmark(hybrid_single, prompt_tokens=3, new_tokens=1, repeats=1)
    assert [figure.mode for figure in report.prefill] == ["token-loop"]
    assert report.as_json()["prefill_speedup"] is None


@pytest.mark.parametrize("name", ["prompt_tokens", "new_tokens", "repeats"])
def test_nothing_to_time_is_refused(hybrid: Decoder, name: str) -> None:
    arguments: Any = {name: 0}
    with pytest.raises(RowpackError) as caught:
        run_benchmark(hybrid, **arguments)
    assert caught.value.code == "benchmark_argument_invalid"
    assert caught.value.problem.where == name


def test_what_the_cache_cannot_hold_is_refused(hybrid: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        run_benchmark(hybrid, prompt_tokens=250, new_tokens=7)
    assert caught.value.code == "sequence_too_long"
