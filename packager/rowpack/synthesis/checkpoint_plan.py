"""What a random checkpoint will hold, read off a configuration before a byte is written.

A configuration is read by the family that would build it, so what is refused here is what a build would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rowpack.families import find_family
from rowpack.families.config_reading import ConfigReader
from rowpack.special_tokens import read_special_tokens
from rowpack.synthesis.published_shapes import published_config
from rowpack.synthesis.qwen3_5_tensors import (
    VISUAL_SIZES,
    multi_token_prediction_tensors,
    text_tensors,
    visual_tensors,
)
from rowpack.synthesis.random_values import RandomTensor
from rowpack.synthesis.rwkv_tensors import rwkv_tensors
from rowpack_loaders.errors import Problem, RowpackError

Layout = Literal["nested", "flat"]
WeightFormat = Literal["safetensors", "torch"]

PUBLISHED_SHARD_BYTES = 5 * 10**9

_RWKV = "rwkv"
_NESTED = "qwen3_5"
_FLAT = "qwen3_5_text"

_CHAT_END_ID = 248046
"""With this the published Qwen3.5 end a chat turn, an id that their config.json does not know."""
_TEXT_END_ID = 248044

_LARGEST_SIZE = 2**63 - 1
"""Of one number: a file of the checkpoint could not count more, and a product of such still fits a float."""


_REMEDY = "Correct the value, or start from the config.json of a published model."


@dataclass(frozen=True)
class CheckpointPlan:
    """Hold what is to be written: both configurations, the text model's tensors and those a text build skips."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    text: list[RandomTensor]
    others: list[RandomTensor]
    weight_format: WeightFormat
    shard_bytes: int | None


def plan_checkpoint(
    shape: str | Mapping[str, Any],
    *,
    layout: Layout | None = None,
    weight_format: WeightFormat | None = None,
    include_visual: bool = False,
    include_mtp: bool = False,
    shard_bytes: int | None = None,
) -> CheckpointPlan:
    """Return the plan for a published name or a configuration; arguments as for ``synthesize``.

    Raises RowpackError ``unknown_shape``, ``shape_option_unsupported``, ``bad_shape_config`` with every value that
    cannot be, and ``special_token_id`` or ``family_look_alike`` as a build does.
    """
    config = published_config(shape) if isinstance(shape, str) else dict(shape)
    model_type = config.get("model_type")
    if model_type == _RWKV:
        _refuse_options_of_qwen(layout, include_visual, include_mtp)
        return _rwkv_plan(config, weight_format, shard_bytes)
    if model_type not in (_NESTED, _FLAT):
        raise _bad_config([_bad_value("config.json#/model_type", model_type, f"'{_NESTED}', '{_FLAT}' or '{_RWKV}'")])
    nested = config.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise _bad_config([_bad_value("config.json#/text_config", nested, "an object")])
    is_nested = layout == "nested" or (layout is None and model_type == _NESTED)
    text_config = dict(find_family(config).text_config(config))
    stated = [place.get("tie_word_embeddings") for place in (config, text_config)]
    # Where the two places differ the tensor is written, and a build obeys the outer one.
    has_head = False in stated or stated == [None, None]
    sizes = _read_sizes(config, "lm_head.weight" if has_head else None)
    others: list[RandomTensor] = []
    if include_visual:
        others += visual_tensors(_visual_sizes(config))
    if include_mtp:
        where = "config.json#" if nested is None else "config.json#/text_config"
        others += multi_token_prediction_tensors(sizes, _mtp_layers(text_config, where))
    prefix = "model.language_model" if is_nested else "model"
    return CheckpointPlan(
        _nested_config(config, text_config, has_head) if is_nested else _flat_config(text_config, has_head),
        _qwen_generation_config(text_config, sizes["vocab_size"]),
        list(text_tensors(sizes, prefix, has_head)),
        others,
        weight_format or "safetensors",
        shard_bytes or (PUBLISHED_SHARD_BYTES if is_nested else None),
    )


def _rwkv_plan(config: dict[str, Any], weight_format: WeightFormat | None, shard_bytes: int | None) -> CheckpointPlan:
    has_head = config.get("tie_word_embeddings") is not True
    sizes = _read_sizes(config, "head.weight" if has_head else None)
    ids = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": config.get("eos_token_id")}
    return CheckpointPlan(config, ids, list(rwkv_tensors(sizes, has_head)), [], weight_format or "torch", shard_bytes)


def _read_sizes(config: Mapping[str, Any], head: str | None) -> Mapping[str, Any]:
    """Return the family's hyper-parameters of ``config``, whose output projection is the tensor ``head`` or tied."""
    family = find_family(config)
    beyond = [
        _bad_value(f"config.json#/{key}", value, f"at most {_LARGEST_SIZE}")
        for key, value in family.text_config(config).items()
        if isinstance(value, int) and value > _LARGEST_SIZE
    ]
    if beyond:
        raise _bad_config(beyond)
    try:
        model = family.describe(config, [] if head is None else [head], "fp32", 1)
    except RowpackError as error:
        if error.code != "config_invalid":
            raise
        raise _bad_config(list(error.problems)) from error
    read_special_tokens(config, family.text_config(config), None, None, None, model.vocab_size)
    return model.hyper_parameters


def _visual_sizes(config: Mapping[str, Any]) -> Mapping[str, int]:
    """Return every size of ``vision_config``."""
    vision = config.get("vision_config")
    where = "config.json#/vision_config"
    if not isinstance(vision, Mapping):
        raise _bad_config([_bad_value(where, vision, "an object, for --with-vision")])
    reader = ConfigReader(vision, where)
    sizes = {name: reader.positive_int(name) for name in VISUAL_SIZES}
    for name, size in sizes.items():
        reader.require(size <= _LARGEST_SIZE, name, size, f"at most {_LARGEST_SIZE}")
    if reader.problems:
        raise _bad_config(reader.problems)
    return sizes


def _mtp_layers(text_config: Mapping[str, Any], where: str) -> int:
    reader = ConfigReader(text_config, where)
    layers = reader.positive_int("mtp_num_hidden_layers", 1)
    if reader.problems:
        raise _bad_config(reader.problems)
    return layers


def _nested_config(config: dict[str, Any], text_config: dict[str, Any], has_head: bool) -> dict[str, Any]:
    if config["model_type"] == _NESTED:
        return config
    inner = {key: value for key, value in text_config.items() if key != "architectures"}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": _NESTED,
        "text_config": inner,
        "tie_word_embeddings": not has_head,
    }


def _flat_config(text_config: dict[str, Any], has_head: bool) -> dict[str, Any]:
    return {
        **text_config,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": _FLAT,
        "tie_word_embeddings": not has_head,
    }


def _qwen_generation_config(text_config: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    end = text_config.get("eos_token_id")
    chat = end == _TEXT_END_ID and vocabulary > _CHAT_END_ID
    return {"eos_token_id": [_CHAT_END_ID, end] if chat else end, "do_sample": False}


def _refuse_options_of_qwen(layout: Layout | None, include_visual: bool, include_mtp: bool) -> None:
    given = {"--layout": layout is not None, "--with-vision": include_visual, "--with-mtp": include_mtp}
    options = [option for option, is_given in given.items() if is_given]
    if options:
        raise RowpackError(
            "shape_option_unsupported",
            "a checkpoint of this model has no such parts",
            where=options[0],
            found=f"{', '.join(options)} with model_type '{_RWKV}'",
            expected=f"model_type '{_NESTED}' or '{_FLAT}'",
            remedy=f"Leave {' and '.join(options)} out, or choose a shape of Qwen3.5.",
        )


def _bad_value(where: str, found: object, expected: str) -> Problem:
    return Problem("config_value", "no checkpoint can be made with this value", where, repr(found), expected, _REMEDY)


def _bad_config(problems: list[Problem]) -> RowpackError:
    """Return the error for values that cannot be: one as it stands, or several in one report."""
    message = "no checkpoint can be made from this configuration"
    # What reads a config for a build advises to look at the weights too; here are none.
    advised = [replace(problem, remedy=_REMEDY) for problem in problems]
    if len(advised) > 1:
        return RowpackError.from_problems("bad_shape_config", message, advised)
    (value,) = advised
    return RowpackError(
        "bad_shape_config",
        message,
        where=value.where,
        found=value.found,
        expected=value.expected,
        remedy=value.remedy,
    )
