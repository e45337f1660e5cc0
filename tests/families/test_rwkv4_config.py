"""RWKV-4 configs: defaults, rescaling, and everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_configs import RWKV

from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription
from rowpack.families.rwkv4.config import Rwkv4Config, read_config
from rowpack_loaders.errors import RowpackError

TENSORS = ("rwkv.embeddings.weight", "head.weight")


def describe(config: dict[str, Any], tensors: tuple[str, ...] = TENSORS) -> ModelDescription:
    return find_family(config).describe(config, tensors, "fp32", 128)


def wrong_keys(config: dict[str, Any], tensors: tuple[str, ...] = TENSORS) -> set[str]:
    with pytest.raises(RowpackError) as caught:
        describe(config, tensors)
    assert caught.value.code == "config_invalid"
    return {str(problem.where).rsplit("/", 1)[-1] for problem in caught.value.problems}


def test_defaults_are_those_of_the_reference() -> None:
    hyper = describe({"model_type": "rwkv", "hidden_size": 64, "vocab_size": 96, "num_hidden_layers": 2})
    assert hyper.hyper_parameters == {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "rescale_every": 6,
        "tied": False,
    }
    assert json.loads(json.dumps(hyper.hyper_parameters)) == hyper.hyper_parameters
    assert hyper.max_position_embeddings is None, "a recurrent state has no end"


def test_null_is_as_good_as_absent() -> None:
    config = {**RWKV, "attention_hidden_size": None, "intermediate_size": None, "rescale_every": None}
    hyper = describe(config).hyper_parameters
    assert (hyper["intermediate_size"], hyper["rescale_every"]) == (192, 6)


@pytest.mark.parametrize(
    ("every", "exponents", "halvings"),
    [
        (6, [0] * 6 + [1] * 6, [5, 11]),
        (2, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [1, 3, 5, 7, 9, 11]),
        (0, [0] * 12, []),
    ],
)
def test_rescaling(every: int, exponents: list[int], halvings: list[int]) -> None:
    config = Rwkv4Config(96, 48, 192, 12, 1e-5, every, False)
    assert [config.rescale_exponent(block) for block in range(12)] == exponents
    assert [block for block in range(12) if config.halves_after(block)] == halvings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", True),
        ("vocab_size", "96"),
        ("intermediate_size", -1),
        ("num_hidden_layers", 1.0),
        ("layer_norm_epsilon", 0),
        ("rescale_every", -1),
        ("rescale_every", 2.0),
        ("attention_hidden_size", 96),
        ("tie_word_embeddings", "no"),
    ],
)
def test_a_value_that_cannot_be_built_is_named(key: str, value: Any) -> None:
    assert key in wrong_keys({**RWKV, key: value})


def test_all_bad_values_are_reported_together() -> None:
    bad = {"vocab_size": 0, "num_hidden_layers": None, "layer_norm_epsilon": "x", "rescale_every": -3}
    assert wrong_keys({**RWKV, **bad}) == set(bad)


@pytest.mark.parametrize(("stated", "head", "tied"), [(False, True, False), (True, False, True), (True, True, True)])
def test_tied_or_not(stated: bool, head: bool, tied: bool) -> None:
    model = describe({**RWKV, "tie_word_embeddings": stated}, TENSORS[: 1 + head])
    assert model.hyper_parameters["tied"] is tied
    assert ("head.weight" in model.required_tensors) is not tied
    assert model.ignored_prefixes == (("head.weight",) if tied else ())


def test_a_tie_flag_that_contradicts_the_tensors() -> None:
    assert wrong_keys(RWKV, TENSORS[:1]) == {"tie_word_embeddings"}


@pytest.mark.parametrize("architectures", [[], None, "RwkvForCausalLM", 7])
def test_an_architecture_that_is_no_list_of_names(architectures: Any) -> None:
    assert describe({**RWKV, "architectures": architectures}).architecture == "RwkvForCausalLM"


def test_a_layer_count_that_no_model_has_is_refused_at_once() -> None:
    with pytest.raises(RowpackError) as caught:
        read_config({**RWKV, "num_hidden_layers": 10**9}, ["head.weight"])
    assert caught.value.problems[0].where == "config.json#/num_hidden_layers"
