"""A config that does not belong to its weights: the value at fault is told first, before the tensors it spoils."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from published_checkpoints import published_checkpoint

from rowpack import BuildRequest, build
from rowpack.families import find_family
from rowpack.model_preparation import prepare_model
from rowpack.synthesis.published_shapes import published_config
from rowpack_loaders import RowpackError
from rowpack_loaders.errors import Problem


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
        ("rwkv", {"hidden_size": 64, "attention_hidden_size": 64}, "attention_hidden_size", "192, as"),
        # That is what it should be; the attention's own size, which the family compares it with, is right.
        ("rwkv", {"hidden_size": 64}, "hidden_size", "192, as"),
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


SIZES = {
    "vocab_size",
    "hidden_size",
    "attention_hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
}


def problems_of(shape: str, *, tensors: Mapping[str, tuple[int, ...]] | None = None, **values: Any) -> list[Problem]:
    """Return what is wrong with a published config with other ``values`` beside its weights, none of which is read.

    ``tensors`` are tensors of the checkpoint with other shapes than published.
    """
    checkpoint = published_checkpoint(shape, tensors=tensors, **values)
    with pytest.raises(RowpackError) as caught:
        prepare_model(checkpoint, BuildRequest(Path("checkpoint"), Path("x.bundle")))
    return list(caught.value.problems)


def told(problems: list[Problem]) -> list[tuple[str, str, str]]:
    """Return key, value and what it should be of the values that the tensors contradict."""
    return [
        ((problem.where or "").rsplit("/", 1)[1], problem.found or "", (problem.expected or "").split(",")[0])
        for problem in problems
        if problem.code == "config_tensors_disagree"
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 4 · 256 is hidden_size too, which 236 tensors have; 2 · 256 is what k_proj has.
        ({"num_key_value_heads": 4}, [("num_key_value_heads", "4", "2")]),
        ({"num_attention_heads": 16}, [("num_attention_heads", "16", "8")]),
        ({"head_dim": 128}, [("head_dim", "128", "256")]),
        ({"linear_value_head_dim": 64}, [("linear_value_head_dim", "64", "128")]),
        ({"linear_num_value_heads": 32}, [("linear_num_value_heads", "32", "16")]),
        # Nothing but their product is in the tensors, beside the values' width.
        ({"linear_key_head_dim": 256}, [("linear_key_head_dim or linear_num_key_heads", "256 or 16", "128 or 8")]),
        ({"linear_num_key_heads": 8}, [("linear_key_head_dim or linear_num_key_heads", "128 or 8", "256 or 16")]),
        ({"hidden_size": 512}, [("hidden_size", "512", "1024")]),
        # The two errors hide each other in k_proj: 4 · 128 rows are as many as 2 · 256.
        (
            {"num_key_value_heads": 4, "head_dim": 128},
            [("head_dim", "128", "256"), ("num_key_value_heads", "4", "2")],
        ),
        (
            {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 3584},
            [("num_attention_heads", "16", "8"), ("num_key_value_heads", "4", "2"), ("vocab_size", "3584", "248320")],
        ),
        # 6 heads with 6 are as good a config as 8 with 2, and neither 8 with 6 nor 2 of 6 is the cause alone.
        (
            {"num_attention_heads": 6, "num_key_value_heads": 6},
            [("num_key_value_heads", "6", "2"), ("num_attention_heads", "6", "8")],
        ),
        ({"num_hidden_layers": 20}, [("num_hidden_layers", "20", "24")]),
        # By default the hidden size divided by the heads; 4 heads would explain more than half of the tensors.
        ({"head_dim": None}, [("head_dim", "no value, so its default", "256")]),
        ({"num_key_value_heads": None}, [("num_key_value_heads", "no value, so its default", "2")]),
    ],
    ids=lambda values: "-".join(values) if isinstance(values, dict) else "",
)
def test_only_values_that_no_tensor_confirms_are_blamed(
    values: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    problems = problems_of("qwen3_5-0.8b", **values)
    assert told(problems) == expected
    assert [problem.code for problem in problems[: len(expected)]] == ["config_tensors_disagree"] * len(expected)


@pytest.mark.parametrize("shape", ["qwen3_5-2b", "qwen3_5-9b", "rwkv4-169m"])
@pytest.mark.parametrize("change", ["twice", "half", "one more"])
def test_every_size_of_a_published_config(shape: str, change: str) -> None:
    """Of each wrong size the value that was published is told, alone or beside one that would do in its place."""
    config = published_config(shape)
    text = find_family(config).text_config(config)
    for key in SIZES & text.keys():
        value = text[key]
        problems = problems_of(shape, **{key: {"twice": 2 * value, "half": value // 2, "one more": value + 1}[change]})
        if key == "attention_hidden_size":
            assert [(problem.code, problem.expected) for problem in problems] == [
                ("config_value", f"{value}, the hidden size")
            ]
            continue
        ((keys, _, expected),) = told(problems)
        assert str(value) == expected.split(" or ")[keys.split(" or ").index(key)]


def test_a_product_is_explained_by_a_tensor_that_has_it() -> None:
    (problem, *others) = problems_of("qwen3_5-0.8b", num_key_value_heads=4)
    assert problem.expected is not None
    assert problem.expected.startswith(
        "2, with which 12 tensors agree, model.language_model.layers.11.self_attn.k_proj"
    )
    assert "[512, 1024]" in problem.expected
    assert {other.code for other in others} == {"tensor_shape"}


def test_a_tensor_at_fault_does_not_make_a_value_one() -> None:
    """A norm of another length is one tensor against all that confirm the size; the wrong value is found beside it."""
    damaged = {"model.language_model.layers.0.input_layernorm.weight": (512,)}
    assert told(problems_of("qwen3_5-0.8b", tensors=damaged)) == []
    problems = problems_of("qwen3_5-0.8b", tensors=damaged, num_key_value_heads=4)
    assert told(problems) == [("num_key_value_heads", "4", "2")]
    assert "model.language_model.layers.0.input_layernorm.weight" in {problem.where for problem in problems}


def test_values_that_cannot_be_built_and_values_that_tensors_contradict_are_one_report() -> None:
    problems = problems_of("rwkv4-169m", attention_hidden_size=512, vocab_size=9)
    assert [(problem.code, (problem.where or "").rsplit("/", 1)[-1]) for problem in problems] == [
        ("config_tensors_disagree", "vocab_size"),
        ("config_value", "attention_hidden_size"),
        ("tensor_shape", "head.weight"),
        ("tensor_shape", "rwkv.embeddings.weight"),
    ]
    problems = problems_of("qwen3_5-0.8b", num_key_value_heads=3, vocab_size=5)
    assert told(problems) == [("num_key_value_heads", "3", "2"), ("vocab_size", "5", "248320")]
    assert [problem.code for problem in problems[2:]] == ["config_value"]


def test_a_value_that_is_none_is_found_from_the_tensors() -> None:
    problems = problems_of("qwen3_5-0.8b", hidden_size="wide", vocab_size=7)
    assert told(problems) == [("hidden_size", "wide", "1024"), ("vocab_size", "7", "248320")]
    assert [problem.code for problem in problems[2:]] == ["config_value"]


@pytest.mark.parametrize(
    ("key", "value", "right"), [("linear_num_value_heads", 3, "16"), ("num_attention_heads", 7, "8")]
)
def test_a_right_value_is_not_blamed_for_contradicting_a_wrong_one(key: str, value: int, right: str) -> None:
    """The family finds no fault but with the number of key heads, which has to divide the other."""
    (problem,) = problems_of("qwen3_5-0.8b", **{key: value})
    assert told([problem]) == [(key, str(value), right)]


def test_what_tensors_should_be_is_not_guessed() -> None:
    """Where nothing makes all tensors agree, only what is wrong in itself is told."""
    damaged = {"model.language_model.norm.weight": (512,)}
    (problem,) = problems_of("qwen3_5-0.8b", tensors=damaged, num_key_value_heads=3)
    assert (problem.code, problem.found) == ("config_value", "3")


def test_a_config_of_quite_another_model_is_told_in_little_time() -> None:
    """The search asks for a bounded number of descriptions; what it found by then holds."""
    small = published_config("qwen3_5-0.8b")["text_config"]
    assert isinstance(small, dict)
    found = {key: expected for key, _, expected in told(problems_of("qwen3_5-4b", **small))}
    assert found["num_hidden_layers"] == "32"
    assert found["hidden_size"] == "2560"
    right = published_config("qwen3_5-4b")["text_config"]
    assert isinstance(right, dict)
    assert {key: str(right[key]) for key in found} == found
