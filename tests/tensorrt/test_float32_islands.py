"""In half-precision engines the parts that must be float32 are float32, layer by layer, as the library sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from compiled_models import TRAINED_CHECKPOINTS, Preparation
from real_library import ParsedNetwork

pytestmark = pytest.mark.trt_rtx

ISLANDS = {
    "qwen3_5": {
        "norms": r"(input_norm|post_norm|final_norm)\.(squared|mean|shifted|root|normalised|scaled)",
        "norms of heads": r"\.(norm|q_norm|k_norm)\.(squared|mean|shifted|root|normalised|scaled)",
        "gates": r"deltanet\.(in_proj_ba|beta|time_step\w*|log_decay)",
        "convolution": r"deltanet\.conv\.",
        "unit keys and queries": r"deltanet\.(qk_\w+|q_scaled)",
        "delta rule": r"deltanet\.delta_rule\.",
        "rotary": r"rotary\.",
        "scores and softmax": r"cached_attention\.(scores\w*|masked|weights\w*|attended\w*|query\w*)",
    },
    "rwkv": {
        "layer norms": r"(pre_norm|time_norm|channel_norm|final_norm)$",
        "token shift and mixing": r"(token_shift|row_difference|_weighted|_mixed)$",
        "wkv": r"time_mixing\.wkv\.",
        "receptance": r"time_mixing\.receptance_sigmoid$",
    },
}
SOLVE = r"deltanet\.delta_rule\.solve\."

WORK_PARTS = {
    "qwen3_5": r"(in_proj_qkvz|gate_up_proj\.product|down_proj|out_proj|o_proj|qkv_proj|_residual|lm_head)$",
    "rwkv": r"_mixing\.(key|value|receptance|output)$|_residual$|^head$",
}


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], ParsedNetwork]:
    """Return a function (family, precision, role) → the network, made once."""
    folder = tmp_path_factory.mktemp("networks")
    made: dict[tuple[str, str, str], ParsedNetwork] = {}

    def network(family: str, precision: str, role: str) -> ParsedNetwork:
        key = (family, precision, role)
        if key not in made:
            place = folder / f"{family}-{precision}"
            place.mkdir(exist_ok=True)
            made[key] = ParsedNetwork(Preparation(TRAINED_CHECKPOINTS[family], place, precision, 64), role)
        return made[key]

    return network


def outputs_of(network: ParsedNetwork, pattern: str) -> list[tuple[str, Any]]:
    """Return (layer, element type) of every floating-point output of the layers whose name fits, but of casts."""
    trt = network.trt
    floats = (trt.DataType.FLOAT, trt.DataType.HALF, trt.DataType.BF16)
    found = []
    for layer in network.layers():
        if layer.type != trt.LayerType.CAST and re.search(pattern, layer.name):
            types = [layer.get_output(index).dtype for index in range(layer.num_outputs)]
            found += [(layer.name, dtype) for dtype in types if dtype in floats]
    return found


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("family", ISLANDS)
def test_islands_are_float32(parsed: Any, family: str, precision: str, role: str) -> None:
    network = parsed(family, precision, role)
    for island, pattern in ISLANDS[family].items():
        if island == "token shift and mixing" and role == "decode":
            pattern = r"(row_difference|_weighted|_mixed)$"
        outputs = outputs_of(network, pattern)
        assert outputs, f"no layer is called as {island} is"
        assert [entry for entry in outputs if entry[1] != network.trt.DataType.FLOAT] == [], island


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_solve_is_float32_with_float32_operands(parsed: Any, precision: str) -> None:
    network = parsed("qwen3_5", precision, "prefill")
    trt = network.trt
    products = [
        layer
        for layer in network.layers()
        if layer.type == trt.LayerType.MATRIX_MULTIPLY and re.search(SOLVE, layer.name)
    ]
    assert len(products) >= 6 * (2 * 3 + 3 + 4)  # of six layers: three doublings, four blocks
    for layer in products:
        assert {layer.get_input(index).dtype for index in range(2)} == {trt.DataType.FLOAT}


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", "HALF"), ("bf16", "BF16")])
@pytest.mark.parametrize("family", WORK_PARTS)
def test_projections_and_residuals_are_in_the_work_precision(
    parsed: Any, family: str, precision: str, dtype: str, role: str
) -> None:
    """Otherwise the islands would say nothing: a whole engine in float32 has them too."""
    network = parsed(family, precision, role)
    outputs = outputs_of(network, WORK_PARTS[family])
    assert len(outputs) > 20
    assert {found.name for _, found in outputs} == {dtype}


@pytest.mark.parametrize("role", ["decode", "prefill"])
@pytest.mark.parametrize("family", ISLANDS)
def test_states_are_float32_inputs_and_outputs(parsed: Any, family: str, role: str) -> None:
    network = parsed(family, "fp16", role).network
    for get, count in ((network.get_input, network.num_inputs), (network.get_output, network.num_outputs)):
        for index in range(count):
            tensor = get(index)
            if re.search(r"(conv|ssm|attn|ff|num|den|max)(_state)?_\d+$|logits", tensor.name):
                assert tensor.dtype.name == "FLOAT", tensor.name
