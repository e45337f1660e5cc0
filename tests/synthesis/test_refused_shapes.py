"""Configurations and options that no random checkpoint can be made from are refused as a build refuses them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis import published_config, synthesize
from rowpack_loaders.errors import RowpackError

SYNTHESIS = importlib.import_module("rowpack.synthesis.synthesize")
"""The module: its package has the function under this name."""

KINDS = ["linear_attention", "full_attention"]
Config = dict[str, Any]


@pytest.fixture
def flat(qwen_checkpoint: Path) -> Config:
    """A small flat Qwen3.5 configuration."""
    config: Config = json.loads((qwen_checkpoint / "config.json").read_text("utf-8"))
    return {**config, "layer_types": KINDS, "num_hidden_layers": 2, "vocab_size": 40}


@pytest.fixture
def nested(flat: Config) -> Config:
    """The same in the published layout."""
    return {"model_type": "qwen3_5", "text_config": flat, "tie_word_embeddings": True}


@pytest.fixture
def rwkv() -> Config:
    """A small RWKV-4 configuration."""
    sizes = {"hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2}
    return {**published_config("rwkv4-169m"), **sizes, "vocab_size": 40}


def refusal(make: Callable[[], object]) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        make()
    for problem in caught.value.problems:
        assert problem.where and problem.found and problem.expected and problem.remedy
    return caught.value


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"hidden_size": "192"}, ["hidden_size"]),
        ({"hidden_size": None}, ["hidden_size"]),
        ({"hidden_size": -5}, ["hidden_size"]),
        ({"hidden_size": 0, "vocab_size": True}, ["hidden_size", "vocab_size"]),
        ({"hidden_size": 10**400}, ["hidden_size"]),
        ({"head_dim": 10**400}, ["head_dim"]),
        ({"num_hidden_layers": 3}, ["layer_types"]),
        ({"num_hidden_layers": 10**9, "layer_types": None}, ["num_hidden_layers"]),
        ({"layer_types": ["sliding_attention"] * 2}, ["layer_types"]),
        ({"layer_types": "linear_attention"}, ["layer_types"]),
        ({"linear_conv_kernel_dim": 8}, ["linear_conv_kernel_dim"]),
        ({"linear_value_head_dim": 1.5}, ["linear_value_head_dim"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings"]),
        ({"intermediate_size": {}}, ["intermediate_size"]),
    ],
)
def test_values_of_qwen_that_cannot_be(flat: Config, tmp_path: Path, changes: Config, where: list[str]) -> None:
    error = refusal(lambda: synthesize({**flat, **changes}, tmp_path / "out"))
    assert error.code == "bad_shape_config"
    assert [problem.where for problem in error.problems] == [f"config.json#/{key}" for key in where]
    assert all("published model" in (problem.remedy or "") for problem in error.problems)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"hidden_size": "16", "attention_hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"attention_hidden_size": 32}, "attention_hidden_size"),
        ({"intermediate_size": [64]}, "intermediate_size"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_values_of_rwkv_that_cannot_be(rwkv: Config, tmp_path: Path, changes: Config, where: str) -> None:
    error = refusal(lambda: synthesize({**rwkv, **changes}, tmp_path / "out"))
    assert (error.code, error.problems[0].where) == ("bad_shape_config", f"config.json#/{where}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [5, "flat", [], True])
def test_a_text_config_that_is_no_object(nested: Config, tmp_path: Path, value: object) -> None:
    error = refusal(lambda: synthesize({**nested, "text_config": value}, tmp_path / "out"))
    assert (error.code, error.problem.where) == ("bad_shape_config", "config.json#/text_config")
    assert error.problem.found == repr(value)


@pytest.mark.parametrize("value", [None, 5, {}, {"hidden_size": "8"}])
def test_a_vision_config_that_describes_none(nested: Config, tmp_path: Path, value: object) -> None:
    error = refusal(lambda: synthesize({**nested, "vision_config": value}, tmp_path / "out", include_visual=True))
    assert error.code == "bad_shape_config"
    assert all((problem.where or "").startswith("config.json#/vision_config") for problem in error.problems)


def test_a_number_of_extra_layers_that_cannot_be(nested: Config, tmp_path: Path) -> None:
    nested["text_config"]["mtp_num_hidden_layers"] = "one"
    error = refusal(lambda: synthesize(nested, tmp_path / "out", include_mtp=True))
    assert error.problem.where == "config.json#/text_config/mtp_num_hidden_layers"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"eos_token_id": "end"}, "special_token_id"),
        ({"eos_token_id": 40}, "special_token_id"),
        ({"num_experts": 8}, "family_look_alike"),
    ],
)
def test_what_a_build_would_refuse_by_another_code(flat: Config, tmp_path: Path, changes: Config, code: str) -> None:
    assert refusal(lambda: synthesize({**flat, **changes}, tmp_path / "out")).code == code
    assert list(tmp_path.iterdir()) == []


def test_layers_may_be_told_by_their_interval(nested: Config, tmp_path: Path) -> None:
    text = {key: value for key, value in nested["text_config"].items() if key != "layer_types"}
    nested["text_config"] = {**text, "num_hidden_layers": 4, "full_attention_interval": 4}
    synthesize(nested, tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        mixers = {name.split(".")[3]: name.split(".")[4] for name in checkpoint.tensors if "_attn." in name}
    assert mixers == {"0": "linear_attn", "1": "linear_attn", "2": "linear_attn", "3": "self_attn"}


@pytest.mark.parametrize("layout", ["flat", "nested"])
@pytest.mark.parametrize(
    ("outside", "inside", "has_head"),
    [(True, None, False), (None, True, False), (None, None, True), (False, None, True), (True, False, True)],
)
def test_the_head_is_written_unless_every_place_ties_it(
    nested: Config, tmp_path: Path, layout: Any, outside: bool | None, inside: bool | None, has_head: bool
) -> None:
    config = {**nested, "tie_word_embeddings": outside}
    config["text_config"] = {**nested["text_config"], "tie_word_embeddings": inside}
    synthesize(config, tmp_path / "out", layout=layout)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert ("lm_head.weight" in checkpoint.tensors) == has_head


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"layout": "nested"}, "--layout"),
        ({"layout": "flat"}, "--layout"),
        ({"include_visual": True}, "--with-vision"),
        ({"include_mtp": True}, "--with-mtp"),
    ],
)
def test_options_of_qwen_are_refused_for_rwkv(rwkv: Config, tmp_path: Path, options: Any, named: str) -> None:
    error = refusal(lambda: synthesize(rwkv, tmp_path / "out", **options))
    assert (error.code, error.problem.where) == ("shape_option_unsupported", named)
    assert list(tmp_path.iterdir()) == []


def test_the_size_is_told_and_the_room_is_checked_before_anything_is_made(
    rwkv: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    written = synthesize(rwkv, tmp_path / "first", announce=told.append)
    assert told == [written.tensor_bytes]
    on_disk = sum(path.stat().st_size for path in (tmp_path / "first").iterdir())
    asked: list[Path] = []

    def free(path: Path) -> int:
        asked.append(path)
        return on_disk - 1

    monkeypatch.setattr(SYNTHESIS, "free_space_bytes", free)
    error = refusal(lambda: synthesize(rwkv, tmp_path / "new" / "deep", announce=told.append))
    assert error.code == "disk_full"
    assert asked == [tmp_path]
    assert len(told) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_file_system_that_tells_no_size_is_written_to(
    rwkv: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SYNTHESIS, "free_space_bytes", lambda _: None)
    assert synthesize(rwkv, tmp_path / "out").tensor_bytes > 0
