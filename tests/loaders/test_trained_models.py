"""Bundles of the trained checkpoints answer as the reference does, whichever way the prompt is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from session_checks import (
    FEW,
    TOLERANCE,
    check_cases,
    check_garbage_in_the_buffers,
    check_prompt_in_pieces,
    check_snapshot_in_the_middle,
)
from trained_models import build_bundle, reference, reference_cases

from rowpack_loaders import load
from rowpack_loaders.evaluation import evaluate

CHECKPOINTS = ("qwen_checkpoint", "rwkv_checkpoint")


class Trained:
    """A checkpoint, its split bundle, and the bundle's decoder on one thread (quick when others use the machine)."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.checkpoint = checkpoint
        self.cases = reference_cases(checkpoint)
        self.decoder = load(build_bundle(checkpoint, folder, "split"), threads=1)


@pytest.fixture(scope="module", params=CHECKPOINTS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    made = Trained(request.getfixturevalue(request.param), tmp_path_factory.mktemp("trained"))
    with made.decoder:
        yield made


def test_chunked_prefill_gives_the_reference_s_tokens(trained: Trained) -> None:
    check_cases(trained.decoder, [trained.cases[index] for index in FEW], "chunked")


def test_the_token_loop_gives_the_reference_s_tokens(trained: Trained) -> None:
    check_cases(trained.decoder, [trained.cases[index] for index in FEW[:6]], "token-loop")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_every_case_of_a_split_bundle(trained: Trained, mode: str) -> None:
    assert len(trained.cases) == 24
    assert all(len(case.greedy_ids) == 32 for case in trained.cases)
    check_cases(trained.decoder, trained.cases, mode)


@pytest.mark.slow
def test_every_case_of_a_single_bundle(trained: Trained, tmp_path: Path) -> None:
    with load(build_bundle(trained.checkpoint, tmp_path, "single"), threads=1) as decoder:
        check_cases(decoder, trained.cases, "token-loop")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_the_last_word_score_is_the_reference_s(trained: Trained, tmp_path: Path, mode: Any) -> None:
    last_word = reference(trained.checkpoint)["last_word"]
    task = tmp_path / "last_word.jsonl"
    task.write_text("".join(json.dumps(item) + "\n" for item in last_word["items"]), encoding="utf-8")
    report = evaluate(trained.decoder, task, prefill=mode)
    assert (report.examples, report.correct) == (len(last_word["items"]), last_word["correct"])
    for result, item in zip(report.results, last_word["items"], strict=True):
        # A few references end before the target does; what there is of them has to be equal.
        assert list(result.predicted_ids)[: len(item["reference_ids"])] == item["reference_ids"]


def test_text_is_scored_as_its_ids_are(trained: Trained, tmp_path: Path) -> None:
    items = reference(trained.checkpoint)["last_word"]["items"][:8]
    scores = []
    for keys in (("context_ids", "target_ids"), ("context", "target_ids")):
        task = tmp_path / f"{keys[0]}.jsonl"
        task.write_text("".join(json.dumps({key: item[key] for key in keys}) + "\n" for item in items))
        scores.append([result.predicted_ids for result in evaluate(trained.decoder, task).results])
    assert scores[0] == scores[1]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 142])
def test_chunks_and_single_rows_agree(trained: Trained, length: int) -> None:
    prompt = np.random.default_rng(length).integers(trained.decoder.model.vocab_size, size=length)
    chunked, looped = trained.decoder.session(), trained.decoder.session()
    left, right = chunked.prefill(prompt, mode="chunked"), looped.prefill(prompt, mode="token-loop")
    assert np.abs(left - right).max() < TOLERANCE * np.abs(right).max()
    for token_id in (5, 6, 7):
        left, right = chunked.step(token_id), looped.step(token_id)
        assert np.abs(left - right).max() < TOLERANCE * np.abs(right).max()


@pytest.mark.parametrize("cuts", [(64,), (128, 192), (10,), (1, 2, 3), (63, 65)])
def test_a_prompt_continued_later(trained: Trained, cuts: tuple[int, ...]) -> None:
    prompt = list(trained.cases[17].prompt_ids)
    assert len(prompt) == 200
    check_prompt_in_pieces(trained.decoder, prompt, cuts)


def test_a_snapshot_in_the_middle_gives_the_same_bits(trained: Trained) -> None:
    check_snapshot_in_the_middle(trained.decoder, list(trained.cases[15].prompt_ids))


@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_garbage_in_the_buffers_changes_nothing(trained: Trained, mode: Any) -> None:
    check_garbage_in_the_buffers(trained.decoder, list(trained.cases[10].prompt_ids), mode)


def test_text_in_and_out(trained: Trained) -> None:
    told: list[str] = []
    result = trained.decoder.generate(
        "In the beginning", 24, stop_token_ids=[], on_token=lambda _, text: told.append(text)
    )
    assert result.text == "".join(told)
    assert result.text
    assert len(result.text.split()) > 5
