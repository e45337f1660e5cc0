"""Exact-match accuracy on a task file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_models import HYBRID, reference_greedy, write_toy_bundle

from rowpack_loaders import RowpackError, load
from rowpack_loaders.decoder import Decoder
from rowpack_loaders.evaluation import evaluate

CONTEXTS = [[1, 2, 3], [9] * 70, [4]]


def write_task(path: Path, examples: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(example) for example in examples) + "\n\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("prefill", ["auto", "token-loop"])
def test_only_an_exact_continuation_counts(hybrid: Decoder, tmp_path: Path, prefill: Any) -> None:
    targets = [reference_greedy(HYBRID, context, 2) for context in CONTEXTS]
    targets[1][1] = (targets[1][1] + 1) % 40
    examples = [
        {"context_ids": context, "target_ids": target, "other": 1}
        for context, target in zip(CONTEXTS, targets, strict=True)
    ]
    told: list[int] = []
    report = evaluate(hybrid, write_task(tmp_path / "t.jsonl", examples), prefill=prefill, on_example=told.append)
    assert told == [1, 2, 3]
    assert (report.examples, report.correct) == (3, 2)
    assert [result.correct for result in report.results] == [True, False, True]
    assert list(report.results[1].predicted_ids) == reference_greedy(HYBRID, CONTEXTS[1], 2)
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["accuracy"] == 0.666667
    assert plain["prefill_mode"] == ("chunked" if prefill == "auto" else "token-loop")


def test_a_limit_scores_the_first_examples(hybrid: Decoder, tmp_path: Path) -> None:
    examples = [{"context_ids": context, "target_ids": [0]} for context in CONTEXTS]
    assert evaluate(hybrid, write_task(tmp_path / "t.jsonl", examples), limit=2).examples == 2


def test_an_end_token_in_the_target_does_not_stop_it(hybrid: Decoder, tmp_path: Path) -> None:
    context = next(
        [first, second]
        for first in range(40)
        for second in range(40)
        if reference_greedy(HYBRID, [first, second], 1) == [0]
    )
    target = reference_greedy(HYBRID, context, 3)
    task = write_task(tmp_path / "t.jsonl", [{"context_ids": context, "target_ids": target}])
    assert evaluate(hybrid, task).correct == 1


def test_text_is_encoded_with_the_bundle_s_tokenizer(tmp_path: Path) -> None:
    vocabulary = {f"w{index}": index for index in range(40)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    section = json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}).encode()
    path = write_toy_bundle(tmp_path / "text.bundle", HYBRID, {"tokenizer.json": section})
    target = reference_greedy(HYBRID, [1, 2, 3], 2)
    examples = [{"context": "w1 w2 w3", "target": " ".join(f"w{token_id}" for token_id in target)}]
    with load(path, threads=1) as decoder:
        assert evaluate(decoder, write_task(tmp_path / "t.jsonl", examples)).correct == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"context_ids": [1]}', "task_line_invalid"),
        ('{"context_ids": [], "target_ids": [1]}', "task_line_invalid"),
        ('{"context_ids": [1.0], "target_ids": [1]}', "task_line_invalid"),
        ('{"context_ids": [true], "target_ids": [1]}', "task_line_invalid"),
        ('{"context_ids": [1], "target_ids": "1"}', "task_line_invalid"),
        ('{"context_ids": [99], "target_ids": [1]}', "token_id_invalid"),
        ('{"context": "a", "target": "b"}', "bundle_without_tokenizer"),
        ('{"context_ids": [1], "context_ids": [1]}', "json_duplicate_key"),
        ("[1]", "json_not_an_object"),
        ("{", "json_malformed"),
    ],
)
def test_a_bad_line_is_named(hybrid: Decoder, tmp_path: Path, line: str, code: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"context_ids": [1], "target_ids": [1]}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(RowpackError) as caught:
        evaluate(hybrid, path)
    assert caught.value.code == code
    if code.startswith(("task", "json")):
        assert "line 3" in str(caught.value)


def test_a_missing_or_empty_task_is_refused(hybrid: Decoder, tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none.jsonl", "task_not_readable"), (tmp_path, "task_not_readable")):
        with pytest.raises(RowpackError) as caught:
            evaluate(hybrid, path)
        assert caught.value.code == code
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(RowpackError) as caught:
        evaluate(hybrid, tmp_path / "empty.jsonl")
    assert caught.value.code == "task_empty"
