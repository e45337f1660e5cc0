"""Which family claims a config, and what is said when none does."""

from __future__ import annotations

from typing import Any

import pytest
from small_configs import QWEN3_5, RWKV

from rowpack.families import FAMILIES, family_named, find_family
from rowpack_loaders.errors import RowpackError


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (QWEN3_5, "qwen3_5"),
        ({"model_type": "qwen3_5", "text_config": QWEN3_5}, "qwen3_5"),
        (RWKV, "rwkv"),
    ],
)
def test_a_config_is_claimed_by_its_model_type(config: dict[str, Any], name: str) -> None:
    assert find_family(config).name == name
    assert [family.name for family in FAMILIES if family.claims(config)] == [name], "by one family only"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"]},
        {"model_type": "qwen3_next"},
        {"model_type": "rwkv5"},
        {"model_type": ["rwkv"]},
        {"architectures": ["RwkvForCausalLM"]},
        {},
    ],
)
def test_an_unknown_family_is_named_and_the_supported_ones_are_listed(config: dict[str, Any]) -> None:
    with pytest.raises(RowpackError) as caught:
        find_family(config)
    problem = caught.value.problem
    assert problem.code == "family_unknown"
    assert repr(config.get("model_type")) in str(problem.found)
    assert all(family.name in str(problem.expected) for family in FAMILIES)
    assert all(kind in str(problem.expected) for family in FAMILIES for kind in family.model_types)


def test_the_text_config() -> None:
    assert find_family(QWEN3_5).text_config(QWEN3_5) is QWEN3_5
    nested = {"model_type": "qwen3_5", "text_config": QWEN3_5}
    assert find_family(nested).text_config(nested) is QWEN3_5
    assert find_family(RWKV).text_config(RWKV) is RWKV


def test_families_are_found_by_the_name_a_bundle_carries() -> None:
    assert [family_named(family.name) for family in FAMILIES] == list(FAMILIES)
