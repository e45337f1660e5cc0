"""A sliding cache: exact up to its capacity, then the window of the last rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_models import HIDDEN, START, VOCAB, ToyModel, reference_logits, toy_weights, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder

CAPACITY = 70
MODEL = ToyModel(capacity=CAPACITY)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path: Path = tmp_path_factory.mktemp("slide") / "small.bundle"
    return load(write_toy_bundle(path, MODEL), threads=1)


def windowed_logits(ids: list[int], capacity: int) -> Any:
    """Return the logits after ``ids`` when each row attends over itself and the capacity - 1 rows before it."""
    weights = toy_weights(MODEL)
    embedding, head = weights["embedding.weight"].astype(float), weights["head.weight"].astype(float)
    state = np.full(HIDDEN, START)
    keys, values = [], []
    hidden = state
    for position, token_id in enumerate(ids):
        state = state / 2 + embedding[token_id]
        keys.append(state + 0.01 * position)
        values.append(embedding[token_id])
        scores = np.array(keys[-capacity:]) @ state
        share = np.exp(scores - scores.max())
        hidden = state + (share / share.sum()) @ np.array(values[-capacity:])
    return head @ hidden


def ids_of(length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(3).integers(VOCAB, size=length).tolist()
    return ids


def close(found: Any, expected: Any) -> bool:
    return bool(np.abs(found - expected).max() < 1e-5 * np.abs(expected).max())


def test_up_to_the_capacity_it_is_the_reference(small: Decoder) -> None:
    session = small.session(overflow="slide")
    assert close(session.prefill(ids_of(CAPACITY)), reference_logits(MODEL, ids_of(CAPACITY)))
    assert session.slid_rows == 0
    assert session.prefill_run.chunks == (64, 6)


@pytest.mark.parametrize("mode", ["auto", "token-loop"])
def test_beyond_it_every_row_sees_the_window(small: Decoder, mode: Any) -> None:
    # Long enough that the window comes to the end of its buffer and is moved, twice.
    ids = ids_of(3 * CAPACITY + 20)
    session = small.session(overflow="slide")
    for length in (CAPACITY + 1, CAPACITY + 30, len(ids)):
        assert close(session.prefill(ids[:length], mode=mode), windowed_logits(ids[:length], CAPACITY))
        assert session.slid_rows == length - CAPACITY
    assert close(session.step(5), windowed_logits([*ids, 5], CAPACITY))


def test_a_snapshot_of_a_slid_session_goes_on_as_it_would_have(small: Decoder) -> None:
    session, other = small.session(overflow="slide"), small.session(overflow="slide")
    session.prefill(ids_of(CAPACITY + 40))
    other.restore(session.snapshot())
    for token_id in ids_of(100):
        assert np.array_equal(session.step(token_id), other.step(token_id))


def test_a_generation_says_that_it_slid(small: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        small.generate(ids_of(60), 20, stop_token_ids=[])
    assert caught.value.code == "sequence_too_long"
    slid = small.generate(ids_of(60), 20, stop_token_ids=[], overflow="slide")
    # 60 prompt rows and 19 of the new tokens were run; the last one only chosen.
    assert slid.slid_rows == 60 + 19 - CAPACITY
    assert slid.as_json()["slid_rows"] == slid.slid_rows
    assert small.generate(ids_of(40), 20, stop_token_ids=[], overflow="slide").slid_rows == 0


def test_an_unknown_policy_is_refused(small: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        small.session(overflow="wrap")
    assert caught.value.code == "overflow_unknown"
