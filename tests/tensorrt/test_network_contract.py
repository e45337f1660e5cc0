"""Each deviation of a network from the inputs and outputs an engine must have is refused, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compiled_models import CACHE_ROWS, Preparation

from rowpack.engines.backend import EngineOrder, prefill_rows_profile
from rowpack.engines.io_contract import EngineContract, check_pair
from rowpack.engines.tensorrt.network_contract import DTYPES, check_network, row_profile
from rowpack_loaders.errors import RowpackError

Network = dict[str, list[dict[str, Any]]]

NAMES = {word: name for name, word in DTYPES.items()}


@pytest.fixture(scope="module")
def orders(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, EngineOrder]:
    """Decode and prefill of the small model with attention."""
    return Preparation(tiny_checkpoints["qwen3_5"], tmp_path_factory.mktemp("orders")).orders


def network_of(contract: EngineContract) -> Network:
    """Return what the library reports of a network that keeps the contract."""

    def facts(tensor: Any) -> dict[str, Any]:
        shape = [-1 if isinstance(extent, str) else extent for extent in tensor.shape]
        return {"name": tensor.name, "dtype": NAMES[tensor.dtype], "shape": shape}

    return {"inputs": [facts(t) for t in contract.inputs], "outputs": [facts(t) for t in contract.outputs]}


def profile_of(order: EngineOrder) -> dict[str, list[list[int]]]:
    return row_profile(order.contract, order.rows, order.capacity_rows)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_what_keeps_the_contract_passes(orders: dict[str, EngineOrder], role: str) -> None:
    order = orders[role]
    check_network(network_of(order.contract), order.contract, role, profile_of(order))


def _rename(kind: str, index: int) -> Callable[[Network], None]:
    def change(network: Network) -> None:
        network[kind][index]["name"] += "_renamed"

    return change


def _set(kind: str, name: str, key: str, value: Any) -> Callable[[Network], None]:
    def change(network: Network) -> None:
        next(tensor for tensor in network[kind] if tensor["name"] == name)[key] = value

    return change


def _drop(kind: str, name: str) -> Callable[[Network], None]:
    def change(network: Network) -> None:
        network[kind] = [tensor for tensor in network[kind] if tensor["name"] != name]

    return change


def _add(kind: str) -> Callable[[Network], None]:
    def change(network: Network) -> None:
        network[kind].append({"name": "extra", "dtype": "FLOAT", "shape": [1]})

    return change


DEVIATIONS: dict[str, tuple[str, Callable[[Network], None]]] = {
    "an input has another name": ("token_id", _rename("inputs", 0)),
    "an output has another name": ("logits", _rename("outputs", 0)),
    "ids of another width": ("token_id", _set("inputs", "token_id", "dtype", "INT64")),
    "a state in half precision": ("ssm_state_0", _set("inputs", "ssm_state_0", "dtype", "HALF")),
    "an element type nobody expects": ("cache_k_0", _set("inputs", "cache_k_0", "dtype", "FP8")),
    "half-precision logits": ("logits", _set("outputs", "logits", "dtype", "HALF")),
    "logits of a free row count": ("logits", _set("outputs", "logits", "shape", [-1, 64])),
    "logits of every row": ("logits", _set("outputs", "logits", "shape", [16, 64])),
    "a state with a free dimension": ("present_ssm_0", _set("outputs", "present_ssm_0", "shape", [-1, 4, 4])),
    "a cache of another length": ("cache_v_0", _set("inputs", "cache_v_0", "shape", [CACHE_ROWS + 1, 8])),
    "a cache of a free length": ("cache_v_0", _set("inputs", "cache_v_0", "shape", [-1, 8])),
    "a cache of another width": ("cache_k_0", _set("inputs", "cache_k_0", "shape", [CACHE_ROWS, 16])),
    "a state of another shape": ("conv_state_0", _set("inputs", "conv_state_0", "shape", [4, 32])),
    "an input is missing": ("attention_mask", _drop("inputs", "attention_mask")),
    "an output is missing": ("present_k_0", _drop("outputs", "present_k_0")),
    "an input too many": ("extra", _add("inputs")),
    "an output too many": ("extra", _add("outputs")),
}


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_one_deviation_is_refused(orders: dict[str, EngineOrder], role: str, deviation: str) -> None:
    order = orders[role]
    name, change = DEVIATIONS[deviation]
    network = copy.deepcopy(network_of(order.contract))
    change(network)
    with pytest.raises(RowpackError) as caught:
        check_network(network, order.contract, role, profile_of(order))
    assert caught.value.code == "engine_contract"
    problems = caught.value.problems
    assert any(str(problem.where).startswith(name) for problem in problems)
    assert len(problems) == (2 if "another name" in deviation else 1)


def test_every_deviation_is_listed(orders: dict[str, EngineOrder]) -> None:
    network = network_of(orders["decode"].contract)
    for _, change in (DEVIATIONS["half-precision logits"], DEVIATIONS["an input is missing"]):
        change(network)
    with pytest.raises(RowpackError) as caught:
        check_network(network, orders["decode"].contract, "decode", {})
    assert [problem.where for problem in caught.value.problems] == ["attention_mask", "logits"]


def test_row_counts_are_fixed_in_decode_and_free_in_prefill(orders: dict[str, EngineOrder]) -> None:
    assert profile_of(orders["decode"]) == {}
    assert orders["decode"].contract.inputs[2].shape == (1, CACHE_ROWS + 1)
    assert profile_of(orders["prefill"]) == {
        "token_id": [[1], [16], [16]],
        "position_id": [[1], [16], [16]],
        "attention_mask": [[1, CACHE_ROWS + 1], [16, CACHE_ROWS + 16], [16, CACHE_ROWS + 16]],
    }


def test_the_full_profile_is_one_to_sixty_four_rows(orders: dict[str, EngineOrder]) -> None:
    profile = row_profile(orders["prefill"].contract, prefill_rows_profile(64), CACHE_ROWS)
    assert profile["token_id"] == [[1], [32], [64]]
    assert profile["attention_mask"][2] == [64, CACHE_ROWS + 64]


def test_an_engine_built_for_other_rows_is_refused(orders: dict[str, EngineOrder]) -> None:
    order = orders["prefill"]
    network = network_of(order.contract)
    for tensor in network["inputs"]:
        if tensor["name"] in profile_of(order):
            tensor["profile"] = profile_of(order)[tensor["name"]]
    check_network(network, order.contract, "prefill", profile_of(order))
    network["inputs"][0]["profile"] = [[1], [16], [32]]
    with pytest.raises(RowpackError, match="other row counts"):
        check_network(network, order.contract, "prefill", profile_of(order))


def _changed_state(contract: EngineContract, state: str, **changes: Any) -> EngineContract:
    inputs = tuple(replace(t, **changes) if t.name == state else t for t in contract.inputs)
    return replace(contract, inputs=inputs)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cache_k_0", {"shape": (CACHE_ROWS * 2, 8)}),
        ("ssm_state_0", {"dtype": "float16"}),
        ("conv_state_0", {"name": "x"}),
    ],
)
def test_engines_that_cannot_share_buffers_are_refused(
    orders: dict[str, EngineOrder], name: str, changes: dict[str, Any]
) -> None:
    decode, prefill = orders["decode"].contract, orders["prefill"].contract
    check_pair(decode, prefill)
    with pytest.raises(RowpackError) as caught:
        check_pair(decode, _changed_state(prefill, name, **changes))
    assert caught.value.code == "engine_pair_mismatch"


def test_the_contract_follows_the_cache(orders: dict[str, EngineOrder]) -> None:
    shapes = {tensor.name: tensor.shape for tensor in orders["prefill"].contract.inputs}
    assert shapes["attention_mask"] == ("rows", "max_cache_length+rows")
    assert shapes["cache_k_0"] == (CACHE_ROWS, 8)
