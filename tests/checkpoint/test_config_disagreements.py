"""A config that does not belong to its weights: the value at fault is told first, before the tensors it spoils."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rowpack import BuildRequest, build
from rowpack_loaders import RowpackError


def refusal(checkpoint: Path, folder: Path, **values: Any) -> RowpackError:
    """Return the error of a build from a copy of ``checkpoint`` with other values in its config."""
    copy = shutil.copytree(checkpoint, folder / "checkpoint")
    path = copy / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **values}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), "utf-8")
    output = folder / "output"
    output.mkdir()
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(copy, output / "x.bundle", verify=False))
    assert list(output.iterdir()) == []
    return caught.value


@pytest.mark.parametrize(
    ("family", "values", "where", "expected", "codes"),
    [
        ("qwen3_5", {"hidden_size": 256}, "hidden_size", "192, as 80 tensors have in its place", {"tensor_shape"}),
        ("qwen3_5", {"intermediate_size": 600}, "intermediate_size", "512, as 24 tensors", {"tensor_shape"}),
        # max_position_embeddings is 4096 as well, and no size of a tensor.
        ("qwen3_5", {"vocab_size": 4096}, "vocab_size", "2048, as 1 tensor has in its place", {"tensor_shape"}),
        (
            "qwen3_5",
            {"num_hidden_layers": 9, "layer_types": None},
            "num_hidden_layers",
            "8, as there are tensors model.layers.*",
            {"tensor_missing"},
        ),
        (
            "qwen3_5",
            {"num_hidden_layers": 4, "layer_types": None},
            "num_hidden_layers",
            "8, as there are tensors model.layers.*",
            {"tensor_unexpected"},
        ),
        (
            "rwkv",
            {"num_hidden_layers": 3},
            "num_hidden_layers",
            "6, as there are tensors rwkv.blocks.*",
            {"tensor_unexpected"},
        ),
        ("rwkv", {"intermediate_size": 64}, "intermediate_size", "768, as 12 tensors", {"tensor_shape"}),
    ],
)
def test_the_value_at_fault_comes_first(
    family: str,
    values: dict[str, Any],
    where: str,
    expected: str,
    codes: set[str],
    qwen_checkpoint: Path,
    rwkv_checkpoint: Path,
    tmp_path: Path,
) -> None:
    error = refusal(qwen_checkpoint if family == "qwen3_5" else rwkv_checkpoint, tmp_path, **values)
    first, *others = error.problems
    assert (error.code, first.code, first.where) == (
        "bad_checkpoint",
        "config_tensors_disagree",
        f"config.json#/{where}",
    )
    assert first.found == str(values[where])
    assert first.expected is not None
    assert first.expected.startswith(expected)
    assert first.remedy
    assert {problem.code for problem in others} == codes


def test_two_values_at_fault_are_both_told(rwkv_checkpoint: Path, tmp_path: Path) -> None:
    error = refusal(rwkv_checkpoint, tmp_path, intermediate_size=64, vocab_size=32)
    told = [problem.where for problem in error.problems if problem.code == "config_tensors_disagree"]
    assert told == ["config.json#/intermediate_size", "config.json#/vocab_size"]


def test_layers_of_another_kind_are_told_by_their_tensors(qwen_checkpoint: Path, tmp_path: Path) -> None:
    """No number is wrong, so there is nothing to say before the tensors."""
    error = refusal(qwen_checkpoint, tmp_path, layer_types=["full_attention"] * 8)
    assert {problem.code for problem in error.problems} == {"tensor_missing", "tensor_unexpected"}


@pytest.mark.parametrize(
    ("family", "values", "where", "expected"),
    [
        ("qwen3_5", {"tie_word_embeddings": False}, "tie_word_embeddings", "holds no lm_head.weight"),
        ("rwkv", {"attention_hidden_size": 512}, "attention_hidden_size", "192, the hidden size"),
        ("rwkv", {"hidden_size": 64, "attention_hidden_size": 64}, "attention_hidden_size or hidden_size", "192, as"),
    ],
)
def test_a_value_that_contradicts_another_or_the_tensors(
    family: str,
    values: dict[str, Any],
    where: str,
    expected: str,
    qwen_checkpoint: Path,
    rwkv_checkpoint: Path,
    tmp_path: Path,
) -> None:
    error = refusal(qwen_checkpoint if family == "qwen3_5" else rwkv_checkpoint, tmp_path, **values)
    assert error.code in ("config_invalid", "bad_checkpoint")
    assert (error.problems[0].where or "").startswith(f"config.json#/{where}")
    assert expected in (error.problems[0].expected or "")


def test_weights_that_end_early_are_told_with_both_lengths(qwen_checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(qwen_checkpoint, tmp_path / "cut")
    weights = copy / "model.safetensors"
    length = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(length // 2)
    with pytest.raises(RowpackError) as caught:
        build(BuildRequest(copy, tmp_path / "x.bundle"))
    problem = caught.value.problem
    assert (problem.code, problem.found, problem.expected) == (
        "safetensors_truncated",
        f"{length // 2} bytes",
        f"{length} bytes",
    )
    assert not (tmp_path / "x.bundle").exists()
