"""Generation: tokens, stop tokens, streaming, timings, argument errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_models import HYBRID, VOCAB, ToyModel, reference_greedy, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("prefill", ["auto", "chunked", "token-loop"])
def test_greedy_tokens_are_the_reference_s(hybrid: Decoder, prefill: Any) -> None:
    result = hybrid.generate(PROMPT, 24, prefill=prefill, stop_token_ids=[])
    assert list(result.token_ids) == reference_greedy(HYBRID, PROMPT, 24)
    assert result.finish_reason == "length"
    assert result.decode.steps == 23
    assert result.decoder_engine_layout == "split"
    assert result.prefill.tokens == len(PROMPT)
    assert result.prefill.chunks == ((1,) * 8 if prefill == "token-loop" else (8,))


def test_one_token_needs_no_decode_step(hybrid: Decoder) -> None:
    result = hybrid.generate(PROMPT, 1)
    assert len(result.token_ids) == 1
    assert result.decode.steps == 0
    assert result.decode.ms_per_token is None


def test_numpy_prompts_are_taken(hybrid: Decoder) -> None:
    expected = hybrid.generate(PROMPT, 4).token_ids
    assert hybrid.generate(np.array(PROMPT), 4).token_ids == expected


def test_the_report_is_plain_json(hybrid: Decoder) -> None:
    report = json.loads(json.dumps(hybrid.generate([1] * 70, 3, stop_token_ids=[]).as_json()))
    assert set(report) == {
        "token_ids",
        "text",
        "finish_reason",
        "decoder_engine_layout",
        "prefill",
        "decode",
        "slid_rows",
    }
    assert report["prefill"]["mode"] == "chunked"
    assert report["prefill"]["chunks"] == [64, 6]
    assert report["prefill"]["ms"] > 0
    assert report["decode"]["steps"] == 2
    assert report["decode"]["ms_per_token"] > 0
    assert report["text"] is None


def test_a_stop_token_ends_the_run_and_is_its_last_token(hybrid: Decoder) -> None:
    free = hybrid.generate(PROMPT, 24, stop_token_ids=[]).token_ids
    stop = free[5]
    stopped = hybrid.generate(PROMPT, 24, stop_token_ids=[stop])
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free[: free.index(stop) + 1]
    assert stopped.token_ids[-1] == stop


def test_every_end_token_of_the_manifest_stops(tmp_path: Path) -> None:
    free = reference_greedy(HYBRID, PROMPT, 24)
    for index in (0, 7):
        # The first that occurs wins, whichever place it has in the list; an id that never comes is harmless.
        model = ToyModel(eos_ids=(VOCAB - 1, free[index]))
        with load(write_toy_bundle(tmp_path / f"{index}.bundle", model), threads=1) as decoder:
            result = decoder.generate(PROMPT, 24)
            assert result.finish_reason == "stop"
            assert list(result.token_ids) == free[: free.index(free[index]) + 1]
            assert decoder.generate(PROMPT, 24, stop_token_ids=[]).finish_reason == "length"


def test_id_zero_is_an_end_token_like_any_other(tmp_path: Path) -> None:
    prompt = next(
        [first, second]
        for first in range(VOCAB)
        for second in range(VOCAB)
        if reference_greedy(HYBRID, [first, second], 1) == [0]
    )
    with load(write_toy_bundle(tmp_path / "zero.bundle", ToyModel(eos_ids=(0,))), threads=1) as decoder:
        result = decoder.generate(prompt, 5)
        assert result.token_ids == (0,)
        assert result.finish_reason == "stop"


@pytest.mark.parametrize("stop", [-1, VOCAB, True, np.True_, 1.5, "2", None])
def test_a_stop_token_outside_the_vocabulary_is_refused(hybrid: Decoder, stop: Any) -> None:
    with pytest.raises(RowpackError) as caught:
        hybrid.generate(PROMPT, 2, stop_token_ids=[stop])
    assert caught.value.code == "stop_token_id_invalid"


@pytest.mark.parametrize("count", [0, -3, True, 2.5, "4", None])
def test_no_new_tokens_are_refused(hybrid: Decoder, count: Any) -> None:
    with pytest.raises(RowpackError) as caught:
        hybrid.generate(PROMPT, count)
    assert caught.value.code == "max_new_tokens_invalid"


def test_an_empty_prompt_is_refused(hybrid: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        hybrid.generate([], 4)
    assert caught.value.code == "prompt_empty"


def test_what_cannot_fit_is_refused_before_anything_runs(hybrid: Decoder) -> None:
    with pytest.raises(RowpackError) as caught:
        hybrid.generate([1] * 250, 7)
    assert caught.value.code == "sequence_too_long"
    assert "250 prompt tokens + 7 new tokens" in str(caught.value)
    assert "256" in str(caught.value)
    assert len(hybrid.generate([1] * 250, 6, stop_token_ids=[]).token_ids) == 6


def test_tokens_are_told_as_they_come(hybrid: Decoder) -> None:
    told: list[tuple[int, str]] = []
    result = hybrid.generate(PROMPT, 6, stop_token_ids=[], on_token=lambda *event: told.append(event))
    assert told == [(token_id, "") for token_id in result.token_ids]


def test_a_listener_that_fails_leaves_the_decoder_usable(hybrid: Decoder) -> None:
    def fail(token_id: int, text: str) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        hybrid.generate(PROMPT, 6, on_token=fail)
    assert hybrid.generate(PROMPT, 2).token_ids


def test_sampled_tokens_repeat_with_the_seed(hybrid: Decoder) -> None:
    def draw(seed: int) -> tuple[int, ...]:
        return hybrid.generate(PROMPT, 30, temperature=2.0, top_k=10, seed=seed, stop_token_ids=[]).token_ids

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_single_bundle_runs_prompts_row_by_row(hybrid_single: Decoder, hybrid: Decoder) -> None:
    result = hybrid_single.generate(PROMPT, 12)
    assert result.prefill.mode == "token-loop"
    assert result.decoder_engine_layout == "single"
    assert result.token_ids == hybrid.generate(PROMPT, 12).token_ids


def test_text_needs_a_tokenizer(hybrid: Decoder) -> None:
    assert not hybrid.has_tokenizer
    with pytest.raises(RowpackError) as caught:
        hybrid.generate("In the beginning", 2)
    assert caught.value.code == "bundle_without_tokenizer"
