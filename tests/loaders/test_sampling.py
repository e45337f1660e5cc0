"""Sampling: greedy, distributions, edge cases, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowpack_loaders import RowpackError
from rowpack_loaders.sampling import Sampler, SamplingParameters, candidate_probabilities


def row(*logits: float) -> Any:
    return np.array(logits, dtype=np.float32)


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    sampler = Sampler(SamplingParameters())
    assert sampler.choose(row(0, 3, 1)) == 1
    assert sampler.choose(row(2, 5, 5)) == 1
    assert sampler.choose(row(-1, -2)) == 0


def test_probabilities_are_the_softmax_at_the_temperature() -> None:
    logits = row(1.0, 0.0, 2.0)
    probabilities, tokens = candidate_probabilities(logits, SamplingParameters(temperature=0.5))
    expected = np.exp(logits[[2, 0, 1]].astype(float) / 0.5)
    assert tokens.tolist() == [2, 0, 1]
    np.testing.assert_allclose(probabilities, expected / expected.sum(), rtol=1e-12)


def test_draws_follow_the_probabilities() -> None:
    parameters = SamplingParameters(temperature=1.0, seed=0)
    sampler = Sampler(parameters)
    logits = row(0.0, 1.0, 2.0, -1.0)
    counts = np.bincount([sampler.choose(logits) for _ in range(20_000)], minlength=4)
    expected = np.exp(logits) / np.exp(logits).sum()
    # Five standard deviations of a binomial count.
    assert (np.abs(counts - 20_000 * expected) < 5 * np.sqrt(20_000 * expected)).all()


def test_top_k_keeps_exactly_k_and_cuts_ties_by_id() -> None:
    logits = row(1, 3, 3, 3, 0)
    for top_k, kept in ((1, [1]), (2, [1, 2]), (4, [1, 2, 3, 0]), (99, [1, 2, 3, 0, 4])):
        probabilities, tokens = candidate_probabilities(logits, SamplingParameters(temperature=1.0, top_k=top_k))
        assert tokens.tolist() == kept
        assert probabilities.sum() == pytest.approx(1)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = np.log(row(0.5, 0.25, 0.125, 0.125))
    for top_p, count in ((1e-9, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.8, 3), (1.0, 4)):
        probabilities, tokens = candidate_probabilities(logits, SamplingParameters(temperature=1.0, top_p=top_p))
        assert len(tokens) == count, top_p
        assert probabilities.sum() == pytest.approx(1)


def test_top_p_counts_among_what_top_k_left() -> None:
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    _, tokens = candidate_probabilities(logits, SamplingParameters(temperature=1.0, top_k=2, top_p=0.57))
    assert tokens.tolist() == [0]  # 0.4 of 0.7 is more than 0.57


def test_tiny_temperature_is_greedy_without_overflow() -> None:
    sampler = Sampler(SamplingParameters(temperature=1e-30, seed=1))
    assert [sampler.choose(row(1e30, -1e30, 0.5)) for _ in range(20)] == [0] * 20


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.01, 10),
    top_k=st.none() | st.integers(1, 50),
    top_p=st.none() | st.floats(1e-6, 1),
    seed=st.integers(0, 2**32),
)
def test_a_draw_is_one_of_the_candidates_and_repeats(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    parameters = SamplingParameters(temperature, top_k, top_p, seed)
    values = row(*logits)
    _, tokens = candidate_probabilities(values, parameters)
    drawn = [Sampler(parameters).choose(values) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0] in tokens
    assert int(values.argmax()) in tokens


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(bad: float, temperature: float) -> None:
    with pytest.raises(RowpackError) as caught:
        Sampler(SamplingParameters(temperature=temperature)).choose(row(0, bad, 1))
    assert caught.value.code == "logits_not_finite"


def test_all_minus_infinity_is_an_error_and_some_is_a_mask() -> None:
    with pytest.raises(RowpackError):
        Sampler(SamplingParameters()).choose(row(-np.inf, -np.inf))
    sampler = Sampler(SamplingParameters(temperature=1.0, seed=0))
    assert {sampler.choose(row(-np.inf, 0, -np.inf)) for _ in range(10)} == {1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", 0),
        ("top_k", True),
        ("top_k", 2.5),
        ("top_k", "3"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 0.5),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RowpackError) as caught:
        SamplingParameters(**{name: value})
    assert caught.value.code == "sampling_parameter_invalid"
    assert caught.value.problem.where == name
