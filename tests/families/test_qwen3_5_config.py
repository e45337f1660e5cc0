"""Qwen3.5 configs: both published layouts, what follows from which key, and everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_configs import QWEN3_5

from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription
from rowpack.synthesis.published_shapes import published_config
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack_loaders.errors import Problem, RowpackError

FLAT_TENSORS = ("model.embed_tokens.weight", "lm_head.weight")


def changed(**keys: Any) -> dict[str, Any]:
    """Return the small config with other values; None removes a key."""
    return {key: value for key, value in {**QWEN3_5, **keys}.items() if value is not None}


def describe(config: dict[str, Any], tensors: tuple[str, ...] = FLAT_TENSORS) -> ModelDescription:
    return find_family(config).describe(config, tensors, "fp32", 128)


def problems(config: dict[str, Any], tensors: tuple[str, ...] = FLAT_TENSORS) -> list[Problem]:
    with pytest.raises(RowpackError) as caught:
        describe(config, tensors)
    assert caught.value.code == "config_invalid"
    assert {problem.code for problem in caught.value.problems} == {"config_value"}
    return list(caught.value.problems)


def keys(found: list[Problem]) -> set[str]:
    return {str(problem.where).rsplit("/", 1)[-1] for problem in found}


def test_flat_config() -> None:
    hyper = describe(QWEN3_5).hyper_parameters
    assert hyper["tensor_prefix"] == "model."
    assert (hyper["rotary_dim"], hyper["rope_theta"]) == (8, 10000.0)
    assert (hyper["hidden_size"], hyper["vocab_size"], hyper["tied"]) == (48, 96, False)


def test_nested_config_of_the_published_repositories() -> None:
    config = published_config("qwen3_5-0.8b")
    names = tuple(tensor.name for tensor in text_tensors_of(config))
    model = describe(config, names)
    assert model.hyper_parameters["tensor_prefix"] == "model.language_model."
    assert model.architecture == "Qwen3_5ForConditionalGeneration"
    assert (model.vocab_size, model.max_position_embeddings) == (248320, 262144)
    assert model.hyper_parameters["rotary_dim"] == 64
    assert model.hyper_parameters["tied"] is True
    assert set(model.ignored_prefixes) >= {"model.visual.", "mtp."}


def test_nested_config_with_the_text_models_tensor_names() -> None:
    """A fine-tune may keep the nested config and save the text model alone: the tensors decide."""
    config = {"model_type": "qwen3_5", "text_config": QWEN3_5}
    assert describe(config).hyper_parameters["tensor_prefix"] == "model."


def test_hyper_parameters_are_plain_json() -> None:
    hyper = describe(QWEN3_5).hyper_parameters
    assert json.loads(json.dumps(hyper)) == hyper


@pytest.mark.parametrize(("interval", "full"), [(4, [3, 7]), (2, [1, 3, 5, 7]), (1, list(range(8))), (9, [])])
def test_layer_kinds_from_the_interval(interval: int, full: list[int]) -> None:
    config = changed(layer_types=None, full_attention_interval=interval, num_hidden_layers=8)
    kinds = describe(config).hyper_parameters["layer_types"]
    assert [index for index, kind in enumerate(kinds) if kind == "full_attention"] == full


def test_layer_kinds_are_every_fourth_without_any_key() -> None:
    config = changed(layer_types=None, num_hidden_layers=8)
    kinds = describe(config).hyper_parameters["layer_types"]
    assert [index for index, kind in enumerate(kinds) if kind == "full_attention"] == [3, 7]


def test_layer_types_count_more_than_the_interval() -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "linear_attention"]
    config = changed(layer_types=kinds, full_attention_interval=2)
    assert describe(config).hyper_parameters["layer_types"] == kinds


@pytest.mark.parametrize(
    "kinds",
    [
        ["linear_attention"] * 3,
        ["linear_attention"] * 3 + ["sliding_attention"],
        "linear_attention",
        [["linear_attention"], "full_attention", "full_attention", "full_attention"],
        [],
        7,
    ],
)
def test_layer_types_that_do_not_fit(kinds: Any) -> None:
    assert keys(problems(changed(layer_types=kinds))) == {"layer_types"}


def test_rotary_parameters_of_older_configs() -> None:
    """Before ``rope_parameters`` the keys were at the top."""
    config = changed(rope_parameters=None, rope_theta=5e5, partial_rotary_factor=0.5)
    hyper = describe(config).hyper_parameters
    assert (hyper["rope_theta"], hyper["rotary_dim"]) == (5e5, 16)
    config = changed(rope_parameters={"rope_type": "default"}, rope_theta=5e5, partial_rotary_factor=0.5)
    hyper = describe(config).hyper_parameters
    assert (hyper["rope_theta"], hyper["rotary_dim"]) == (5e5, 16)


def test_rotary_parameters_without_any_key_are_the_published_ones() -> None:
    hyper = describe(changed(rope_parameters=None, head_dim=256)).hyper_parameters
    assert (hyper["rope_theta"], hyper["rotary_dim"]) == (1e7, 64)


@pytest.mark.parametrize("kind", ["default", "mrope"])
def test_rotary_of_several_axes_is_the_ordinary_one_on_text(kind: str) -> None:
    rope = {"rope_type": kind, "mrope_interleaved": True, "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    assert describe(changed(rope_parameters=rope)).hyper_parameters["rotary_dim"] == 8


@pytest.mark.parametrize(
    ("rope", "key"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type"),
        ({"rope_type": "linear", "factor": 4.0}, "rope_type"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "1e7"}, "rope_theta"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.22}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor"),
        ({"partial_rotary_factor": -0.25}, "partial_rotary_factor"),
        (["default"], "rope_parameters"),
        ("default", "rope_parameters"),
    ],
)
def test_rotary_parameters_that_are_refused(rope: Any, key: str) -> None:
    assert key in keys(problems(changed(rope_parameters=rope)))


@pytest.mark.parametrize(
    ("stated", "head", "tied"), [(True, False, True), (False, True, False), (True, True, True), (None, True, False)]
)
def test_tied_or_not_follows_from_config_and_tensors(stated: bool | None, head: bool, tied: bool) -> None:
    model = describe(changed(tie_word_embeddings=stated), FLAT_TENSORS[: 1 + head])
    assert model.hyper_parameters["tied"] is tied
    assert ("lm_head.weight" in model.required_tensors) is not tied
    assert ("lm_head.weight" in model.ignored_prefixes) is tied, "a stored copy of the embedding is no surprise"


def test_tied_when_nothing_says_so_and_no_head_is_there() -> None:
    assert describe(changed(tie_word_embeddings=None), FLAT_TENSORS[:1]).hyper_parameters["tied"] is True


def test_a_tie_flag_that_contradicts_the_tensors() -> None:
    (problem,) = problems(changed(tie_word_embeddings=False), FLAT_TENSORS[:1])
    assert "lm_head.weight" in str(problem.expected)
    assert keys(problems(changed(tie_word_embeddings="yes"))) == {"tie_word_embeddings"}


@pytest.mark.parametrize(("outer", "inner"), [(True, None), (None, True), (True, True)])
def test_the_tie_flag_of_a_nested_config_may_be_at_either_level(outer: bool | None, inner: bool | None) -> None:
    config = {"model_type": "qwen3_5", "text_config": changed(tie_word_embeddings=inner)}
    if outer is not None:
        config["tie_word_embeddings"] = outer
    assert describe(config, FLAT_TENSORS[:1]).hyper_parameters["tied"] is True


WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_size": (0, -1, 48.0, True, "48"),
    "vocab_size": (0, 1.5, [96]),
    "intermediate_size": (0,),
    "num_hidden_layers": (0, True),
    "num_attention_heads": (0, "6"),
    "num_key_value_heads": (0, 4, 5),
    "linear_num_key_heads": (0, 4),
    "linear_num_value_heads": (0, 3),
    "linear_key_head_dim": (0,),
    "linear_value_head_dim": (0,),
    "head_dim": (0,),
    "linear_conv_kernel_dim": (3, 8, "4"),
    "rms_norm_eps": (0, -1e-6, "1e-6", True),
    "max_position_embeddings": (0,),
    "hidden_act": ("gelu", 5),
    "attention_bias": (True,),
    "attn_output_gate": (False,),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values])
def test_a_value_that_cannot_be_built_is_named(key: str, value: Any) -> None:
    found = problems(changed(**{key: value}))
    # A head count that does not divide is reported at whichever of the two keys.
    assert keys(found) & {key, key.replace("value", "key")}
    assert any(repr(value) in str(problem.found) or "heads" in key for problem in found)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "vocab_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ],
)
def test_a_missing_dimension_is_named(key: str) -> None:
    assert key in keys(problems(changed(**{key: None})))


def test_all_bad_values_are_reported_together() -> None:
    bad = {"hidden_size": 0, "vocab_size": "x", "rms_norm_eps": -1, "hidden_act": "relu", "linear_num_key_heads": 5}
    found = problems(changed(**bad, rope_parameters={"rope_type": "yarn"}))
    assert keys(found) >= {*bad, "rope_type"}


def test_problems_of_a_nested_config_point_into_it() -> None:
    config = {"model_type": "qwen3_5", "text_config": changed(vocab_size=0)}
    (problem,) = problems(config)
    assert problem.where == "config.json#/text_config/vocab_size"


@pytest.mark.parametrize("architectures", [[], None, "Qwen3_5ForCausalLM", 7, [3]])
def test_an_architecture_that_is_no_list_of_names(architectures: Any) -> None:
    """The key is informative: whatever it holds, the bundle names one architecture."""
    assert describe(changed(architectures=architectures)).architecture == "Qwen3_5ForCausalLM"


@pytest.mark.parametrize(
    ("key", "value"), [("num_experts", 8), ("num_local_experts", 4), ("output_gate_type", "sigmoid")]
)
@pytest.mark.parametrize("nested", [False, True])
def test_look_alikes_are_refused_by_name(key: str, value: Any, nested: bool) -> None:
    text = changed(**{key: value})
    config = {"model_type": "qwen3_5", "text_config": text} if nested else text
    with pytest.raises(RowpackError) as caught:
        describe(config)
    assert caught.value.code == "family_look_alike"
    assert key in str(caught.value.problem.where) and repr(value) in str(caught.value.problem.found)


@pytest.mark.parametrize(("key", "value"), [("num_experts", 0), ("num_experts", None), ("mlp_only_layers", [])])
def test_keys_that_say_there_is_nothing_of_the_kind_are_fine(key: str, value: Any) -> None:
    assert describe({**QWEN3_5, key: value}).family == "qwen3_5"
