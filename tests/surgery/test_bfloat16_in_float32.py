"""bfloat16 graphs on a runtime without bfloat16 arithmetic: operators in float32, results rounded."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from model_engines import ModelEngines, golden_cases, golden_error
from oracles import Array
from subgraph import Subgraph

from rowpack.surgery import GraphForm, decode_model, prefill_model
from rowpack.surgery.bfloat16_in_float32 import in_float32

BFLOAT16_LOGIT_BAR = 2e-2
"""The bar of bfloat16 weights with a float32 state."""

SUM_OF_PRODUCTS = """
<ir_version: 10, opset_import: ["" : 20]>
graph (float[3] a, float[3] b) => (float[3] wide, bfloat16[3] narrow)
{
    x = Cast<to: int = 16>(a)
    y = Cast<to: int = 16>(b)
    product = Mul(x, y)
    narrow = Add(product, x)
    wide = Cast<to: int = 1>(narrow)
}
"""


def bfloat16(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_every_result_is_rounded() -> None:
    model = in_float32(onnx.parser.parse_model(SUM_OF_PRODUCTS))
    onnx.checker.check_model(model, full_check=True)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    (found,) = Subgraph(model, ["wide"])(a=a, b=b)
    x, y = bfloat16(a), bfloat16(b)
    assert np.array_equal(found, bfloat16(bfloat16(x * y) + x))


def test_inputs_and_outputs_stay_as_they_are() -> None:
    model = onnx.parser.parse_model(SUM_OF_PRODUCTS)
    changed = in_float32(model)
    for before, after in ((model.graph.input, changed.graph.input), (model.graph.output, changed.graph.output)):
        assert list(before) == list(after)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Mul", "Add", "Cast"]  # not in place


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_other_graphs_are_left_alone(shipped_engines: Callable[..., ModelEngines], precision: str) -> None:
    model = shipped_engines("rwkv", precision).decode_model
    assert in_float32(model).SerializeToString() == model.SerializeToString()


def test_a_whole_model_keeps_its_logits(shipped_engines: Callable[..., ModelEngines]) -> None:
    """The other family, whose caches are bfloat16 too, runs in the smoke run of its builds."""
    engines = shipped_engines("rwkv", "bf16")
    form = GraphForm(None, weight_on_the_left=False, batched_halves=True)
    prefill = engines.session(in_float32(prefill_model(engines.exported_model, 64, form)))
    decode = engines.session(in_float32(decode_model(engines.exported_model, form)))
    case = next(case for case in golden_cases(engines.checkpoint) if len(case["prompt_ids"]) == 65)
    chunked, looped = engines.sequence(), engines.sequence()
    assert golden_error(chunked.prefill(prefill, case["prompt_ids"]), case) <= BFLOAT16_LOGIT_BAR
    assert golden_error(looped.prefill(decode, case["prompt_ids"], [1] * 65), case) <= BFLOAT16_LOGIT_BAR
