"""On OpenVINO the trained checkpoints answer as the reference does, whichever way the prompt is run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_bundles import OnOpenVino, build_for
from session_checks import (
    FEW,
    check_cases,
    check_garbage_in_the_buffers,
    check_prompt_in_pieces,
    check_snapshot_in_the_middle,
)
from trained_models import reference_cases

from rowpack_loaders import load

pytestmark = pytest.mark.openvino


def numbered_cases(checkpoint: Path, numbers: tuple[int, ...]) -> list[Any]:
    """Return some of the reference's cases."""
    cases = reference_cases(checkpoint)
    return [cases[number] for number in numbers]


@pytest.mark.parametrize(("mode", "numbers"), [("chunked", FEW), ("token-loop", FEW[:6])])
def test_the_reference_s_tokens(on_openvino: OnOpenVino, mode: str, numbers: tuple[int, ...]) -> None:
    assert on_openvino.decoder.runtime.backend == "openvino"
    check_cases(on_openvino.decoder, numbered_cases(on_openvino.checkpoint, numbers), mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_every_case(on_openvino: OnOpenVino, mode: str) -> None:
    check_cases(on_openvino.decoder, reference_cases(on_openvino.checkpoint), mode)


def test_a_single_bundle(on_openvino: OnOpenVino, tmp_path: Path) -> None:
    with load(build_for(on_openvino.checkpoint, tmp_path, "single"), threads=1) as decoder:
        assert not decoder.runtime.has_prefill_engine
        check_cases(decoder, numbered_cases(on_openvino.checkpoint, FEW[:4]), "token-loop")


def test_a_bundle_for_onnx_runtime_runs_too(on_openvino: OnOpenVino, tmp_path: Path) -> None:
    path = build_for(on_openvino.checkpoint, tmp_path, "split", backend="ort")
    with load(path, runtime="openvino", threads=1) as decoder:
        assert decoder.runtime.backend == "openvino"
        check_cases(decoder, numbered_cases(on_openvino.checkpoint, (3, 10, 15)), "chunked")


def test_a_bundle_for_openvino_runs_on_onnx_runtime(on_openvino: OnOpenVino) -> None:
    with load(on_openvino.path, runtime="ort", threads=1) as decoder:
        check_cases(decoder, numbered_cases(on_openvino.checkpoint, (3, 10, 15)), "chunked")


@pytest.mark.parametrize("cuts", [(64,), (128, 192), (1, 2, 3), (63, 65)])
def test_a_prompt_continued_later(on_openvino: OnOpenVino, cuts: tuple[int, ...]) -> None:
    prompt = list(reference_cases(on_openvino.checkpoint)[17].prompt_ids)
    check_prompt_in_pieces(on_openvino.decoder, prompt, cuts)


def test_a_snapshot_in_the_middle_gives_the_same_bits(on_openvino: OnOpenVino) -> None:
    prompt = list(reference_cases(on_openvino.checkpoint)[15].prompt_ids)
    check_snapshot_in_the_middle(on_openvino.decoder, prompt)


@pytest.mark.parametrize("mode", ["chunked", "token-loop"])
def test_garbage_in_the_buffers_changes_nothing(on_openvino: OnOpenVino, mode: Any) -> None:
    prompt = list(reference_cases(on_openvino.checkpoint)[10].prompt_ids)
    check_garbage_in_the_buffers(on_openvino.decoder, prompt, mode)


def test_two_sessions_in_turn_do_not_disturb_each_other(on_openvino: OnOpenVino) -> None:
    prompts = [list(reference_cases(on_openvino.checkpoint)[number].prompt_ids) for number in (9, 21)]
    sessions = [on_openvino.decoder.session() for _ in prompts]
    alone = []
    for prompt in prompts:
        session = on_openvino.decoder.session()
        session.prefill(prompt)
        alone.append([session.step(token_id).copy() for token_id in (3, 4, 5)])
    for session, prompt in zip(sessions, prompts, strict=True):
        session.prefill(prompt)
    for step, token_id in enumerate((3, 4, 5)):
        for session, expected in zip(sessions, alone, strict=True):
            assert np.array_equal(session.step(token_id), expected[step])


def test_sessions_in_several_threads(on_openvino: OnOpenVino) -> None:
    prompts = [list(reference_cases(on_openvino.checkpoint)[number].prompt_ids) for number in (8, 9, 10)]

    def run(prompt: list[int]) -> Any:
        session = on_openvino.decoder.session()
        session.prefill(prompt)
        return [session.step(token_id).copy() for token_id in range(3, 9)]

    alone = [run(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(threads.map(run, prompts))
    for found, expected in zip(together, alone, strict=True):
        assert np.array_equal(found, expected)
