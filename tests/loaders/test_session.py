"""Sessions: chunks, steps, snapshots, independence, errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import HYBRID, PREFILL_ROWS, RECURRENT, VOCAB, ToyModel, reference_logits, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.session import Session, chunk_lengths

LENGTHS = (1, 2, 3, 63, 64, 65, 130)
TOLERANCE = 1e-5


def prompt(length: int, seed: int = 1) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(VOCAB, size=length).tolist()
    return ids


def relative_error(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_chunks_are_cut_at_absolute_multiples() -> None:
    assert chunk_lengths(0, 142, 64) == [64, 64, 14]
    assert chunk_lengths(0, 64, 64) == [64]
    assert chunk_lengths(0, 1, 64) == [1]
    assert chunk_lengths(10, 60, 64) == [54, 6]
    assert chunk_lengths(64, 64, 64) == [64]
    assert chunk_lengths(63, 2, 64) == [1, 1]
    assert chunk_lengths(5, 3, 1) == [1, 1, 1]


@given(position=st.integers(0, 300), count=st.integers(1, 300), rows=st.integers(1, 64))
def test_chunks_cover_the_rows_and_never_cross_the_grid(position: int, count: int, rows: int) -> None:
    lengths = chunk_lengths(position, count, rows)
    assert sum(lengths) == count
    ends = np.cumsum([position, *lengths])
    assert all(end % rows == 0 for end in ends[1:-1])
    assert all(0 < length <= rows for length in lengths)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("fixture", ["hybrid", "hybrid_single", "recurrent"])
def test_every_mode_equals_the_reference(fixture: str, length: int, request: pytest.FixtureRequest) -> None:
    decoder: Decoder = request.getfixturevalue(fixture)
    model = RECURRENT if fixture == "recurrent" else HYBRID
    session, ids = decoder.session(), prompt(length)
    expected = reference_logits(model, ids)
    assert relative_error(session.prefill(ids), expected) < TOLERANCE
    assert session.prefill_run.mode == ("token-loop" if fixture == "hybrid_single" else "chunked")
    assert relative_error(session.prefill(ids, mode="token-loop"), expected) < TOLERANCE
    assert session.prefill_run.chunks == (1,) * length
    for token_id in prompt(5, seed=2):
        ids.append(token_id)
        assert relative_error(session.step(token_id), reference_logits(model, ids)) < TOLERANCE
    assert session.position == length + 5


@pytest.mark.parametrize("dtype,bar", [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_caches_in_half_precision(dtype: str, bar: float, tmp_path: Any) -> None:
    model = ToyModel(cache_dtype=dtype)
    with load(write_toy_bundle(tmp_path / "half.bundle", model), threads=1) as decoder:
        session, ids = decoder.session(), prompt(130)
        expected = reference_logits(model, ids)
        chunked, looped = session.prefill(ids), session.prefill(ids, mode="token-loop")
        assert relative_error(chunked, expected) < bar
        assert relative_error(looped, expected) < bar
        snapshot = session.snapshot()
        assert snapshot.states["cache_k_0"].dtype == (np.float16 if dtype == "float16" else np.uint16)


@pytest.mark.parametrize("fixture", ["hybrid", "recurrent"])
@settings(max_examples=25, deadline=None)
@given(cuts=st.sets(st.integers(1, 149), max_size=4))
def test_any_cut_gives_the_same_result(fixture: str, cuts: set[int], request: pytest.FixtureRequest) -> None:
    decoder: Decoder = request.getfixturevalue(fixture)
    ids = prompt(150)
    whole, pieces = decoder.session(), decoder.session()
    expected = whole.prefill(ids)
    bounds = [0, *sorted(cuts), 150]
    logits = pieces.prefill(ids[: bounds[1]])
    for begin, end in pairwise(bounds[1:]):
        logits = pieces.extend(ids[begin:end])
    assert relative_error(logits, expected) < TOLERANCE
    if all(cut % PREFILL_ROWS == 0 for cut in cuts):
        assert np.array_equal(logits, expected)


@pytest.mark.parametrize("fixture", ["hybrid", "recurrent"])
@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128)])
def test_cuts_on_the_grid_give_the_same_bits(
    fixture: str, cuts: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    decoder: Decoder = request.getfixturevalue(fixture)
    ids = prompt(200)
    whole, pieces = decoder.session(), decoder.session()
    expected = whole.prefill(ids)
    bounds = [0, *cuts, 200]
    pieces.prefill(ids[: bounds[1]])
    for begin, end in pairwise(bounds[1:]):
        logits = pieces.extend(ids[begin:end])
    assert np.array_equal(logits, expected)
    assert_same_snapshot(whole, pieces)


def assert_same_snapshot(left: Session, right: Session) -> None:
    first, second = left.snapshot(), right.snapshot()
    assert first.position == second.position
    assert first.states.keys() == second.states.keys()
    for name, array in first.states.items():
        assert np.array_equal(array, second.states[name]), name


@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_garbage_outside_the_valid_rows_changes_nothing(hybrid: Decoder, mode: Any) -> None:
    ids = prompt(130)
    clean, dirty = hybrid.session(), hybrid.session()
    buffers = dirty._sequence.buffers
    for state in buffers.fixed:
        state.pair[1][...] = np.nan
    for cache in buffers.caches:
        cache.rows[...] = np.nan
    expected, found = clean.prefill(ids, mode=mode), dirty.prefill(ids, mode=mode)
    assert np.array_equal(found, expected)
    for token_id in prompt(3, seed=5):
        assert np.array_equal(dirty.step(token_id), clean.step(token_id))
    # Canary: nothing was written behind the rows that are filled.
    for cache in buffers.caches:
        assert np.isnan(cache.rows[133:]).all()
        assert np.isfinite(cache.rows[:133]).all()


def test_a_prompt_starts_anew_and_extend_goes_on(hybrid: Decoder) -> None:
    session = hybrid.session()
    first = session.prefill([5])
    session.step(7)
    assert np.array_equal(session.prefill([5]), first)
    assert session.position == 1
    session.extend([7])
    assert session.position == 2


def test_logits_of_a_step_belong_to_the_caller(hybrid: Decoder) -> None:
    session = hybrid.session()
    logits = session.prefill([1, 2, 3])
    kept = logits.copy()
    stepped = session.step(4)
    kept_step = stepped.copy()
    session.step(5)
    assert np.array_equal(logits, kept)
    assert np.array_equal(stepped, kept_step)


@pytest.mark.parametrize("fixture", ["hybrid", "recurrent"])
@pytest.mark.parametrize("at", [1, 64, 100])
def test_a_snapshot_outlives_what_the_session_does_next(fixture: str, at: int, request: pytest.FixtureRequest) -> None:
    decoder: Decoder = request.getfixturevalue(fixture)
    session, fresh = decoder.session(), decoder.session()
    session.prefill(prompt(at))
    snapshot = session.snapshot()
    session.extend(prompt(90, seed=3))
    session.prefill(prompt(120, seed=4))
    session.restore(snapshot)
    fresh.prefill(prompt(at))
    assert_same_snapshot(session, fresh)
    tail = prompt(80, seed=6)
    assert np.array_equal(session.extend(tail), fresh.extend(tail))
    for token_id in prompt(3, seed=7):
        assert np.array_equal(session.step(token_id), fresh.step(token_id))


def test_a_snapshot_moves_to_another_session_of_the_model_only(hybrid: Decoder, recurrent: Decoder) -> None:
    first, second = hybrid.session(), hybrid.session()
    first.prefill(prompt(70))
    second.restore(first.snapshot())
    assert np.array_equal(first.step(3), second.step(3))
    with pytest.raises(RowpackError) as caught:
        recurrent.session().restore(first.snapshot())
    assert caught.value.code == "snapshot_of_another_model"


def test_sessions_of_one_decoder_are_independent(hybrid: Decoder) -> None:
    alone = hybrid.session()
    expected = [alone.prefill(prompt(100, seed=1)), alone.step(1), alone.step(2)]
    first, second = hybrid.session(), hybrid.session()
    found = [first.prefill(prompt(100, seed=1))]
    second.prefill(prompt(30, seed=9))
    found.append(first.step(1))
    second.step(8)
    second.reset()
    found.append(first.step(2))
    for left, right in zip(found, expected, strict=True):
        assert np.array_equal(left, right)


def test_sessions_run_in_several_threads(hybrid: Decoder) -> None:
    def run(seed: int) -> tuple[int, ...]:
        return hybrid.generate(prompt(100, seed=seed), 40, stop_token_ids=[]).token_ids

    expected = [run(seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(6))) == expected


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "prompt_empty"),
        ([-1], "token_id_invalid"),
        ([VOCAB], "token_id_invalid"),
        ([1, 2, 2**40], "token_id_invalid"),
        ([True], "token_id_invalid"),
        ([np.True_], "token_id_invalid"),
        (np.array([1.5]), "token_id_invalid"),
        ([None], "token_id_invalid"),
        ([1.0], "token_id_invalid"),
        (["1"], "token_id_invalid"),
        ([1] * 257, "sequence_too_long"),
    ],
)
def test_a_refused_prompt_changes_nothing(hybrid: Decoder, ids: Any, code: str) -> None:
    session, other = hybrid.session(), hybrid.session()
    session.prefill([1, 2, 3])
    other.prefill([1, 2, 3])
    for call in (session.prefill, session.extend):
        with pytest.raises(RowpackError) as caught:
            call(ids)
        assert caught.value.code == code
    assert_same_snapshot(session, other)


def test_numpy_ids_are_taken(hybrid: Decoder) -> None:
    session = hybrid.session()
    expected = session.prefill([1, 2, 3])
    assert np.array_equal(session.prefill(np.array([1, 2, 3], dtype=np.int32)), expected)
    assert np.array_equal(session.step(np.int64(4)), hybrid_step(hybrid, [1, 2, 3], 4))


def hybrid_step(decoder: Decoder, ids: list[int], token_id: int) -> Any:
    session = decoder.session()
    session.prefill(ids)
    return session.step(token_id)


def test_a_full_cache_refuses_naming_both_numbers_and_the_flag(hybrid: Decoder) -> None:
    session = hybrid.session()
    session.prefill(prompt(256))
    with pytest.raises(RowpackError) as caught:
        session.step(1)
    assert caught.value.code == "sequence_too_long"
    text = str(caught.value)
    assert "256" in text and "257" in text and "--max-sequence-length" in text
    assert session.usable


def test_a_recurrent_model_has_no_longest_sequence(recurrent: Decoder) -> None:
    session, ids = recurrent.session(), prompt(600)
    assert relative_error(session.prefill(ids), reference_logits(RECURRENT, ids)) < TOLERANCE


def test_chunked_prefill_needs_a_prefill_engine(hybrid_single: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        hybrid_single.session().prefill([1], mode="chunked")
    assert caught.value.code == "prefill_engine_missing"
    with pytest.raises(RowpackError) as caught:
        hybrid_single.session().prefill([1], mode="fast")
    assert caught.value.code == "prefill_mode_unknown"


@pytest.mark.parametrize("engine", ["run_leading_chunk", "run_step"])
def test_a_failing_run_spoils_the_session_and_not_the_model(
    hybrid: Decoder, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = hybrid.session()
    real = getattr(session._sequence, engine)
    calls = []

    def fail_at_second(argument: Any) -> Any:
        calls.append(argument)
        if len(calls) == 2:
            raise RuntimeError("device lost\nat 0x00")
        return real(argument)

    monkeypatch.setattr(session._sequence, engine, fail_at_second)
    mode: Any = "token-loop" if engine == "run_step" else "chunked"
    with pytest.raises(RowpackError) as caught:
        session.prefill(prompt(130), mode=mode)
    assert caught.value.code == "engine_run_failed"
    assert "device lost" in str(caught.value)
    for call in (lambda: session.step(1), lambda: session.extend([1]), session.snapshot):
        with pytest.raises(RowpackError) as caught:
            call()
        assert caught.value.code == "session_unusable"
    expected = hybrid.session().prefill(prompt(130), mode=mode)
    monkeypatch.undo()
    assert np.array_equal(session.prefill(prompt(130), mode=mode), expected)
    assert session.usable


def test_leading_chunks_skip_the_head_and_change_no_bit(hybrid: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    session = hybrid.session()
    expected = session.prefill(prompt(130), mode="chunked")
    sequence: Any = session._sequence
    leading: list[int] = []

    def with_logits(token_ids: Any) -> None:
        leading.append(len(token_ids))
        sequence.run_chunk(token_ids)

    monkeypatch.setattr(sequence, "run_leading_chunk", with_logits)
    assert np.array_equal(session.prefill(prompt(130), mode="chunked"), expected)
    assert leading == [64, 64]


@pytest.mark.parametrize(
    ("mode", "length", "calls"),
    [
        ("auto", 1, ["step"]),
        ("auto", 2, ["chunk"]),
        ("auto", 65, ["leading chunk", "step"]),
        ("auto", 66, ["leading chunk", "chunk"]),
        ("chunked", 1, ["chunk"]),
        ("chunked", 65, ["leading chunk", "chunk"]),
    ],
)
def test_a_last_row_by_itself_is_a_step(
    mode: Any, length: int, calls: list[str], hybrid: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = hybrid.session()
    made: list[str] = []

    def recorded(call: str, run: Any) -> Any:
        def record(rows: Any) -> Any:
            made.append(call)
            return run(rows)

        return record

    for name, call in (("run_step", "step"), ("run_chunk", "chunk"), ("run_leading_chunk", "leading chunk")):
        monkeypatch.setattr(session._sequence, name, recorded(call, getattr(session._sequence, name)))
    ids = prompt(length)
    assert relative_error(session.prefill(ids, mode=mode), reference_logits(HYBRID, ids)) < TOLERANCE
    assert made == calls
    assert session.prefill_run.mode == "chunked"
    assert sum(session.prefill_run.chunks) == length


def test_an_interrupt_inside_a_prompt_spoils_the_session(hybrid: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    session = hybrid.session()

    def interrupt(_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(session._sequence, "run_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.step(1)
    assert not session.usable
    session.reset()
    assert session.usable
