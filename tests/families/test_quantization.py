"""Which tensors are quantised, and that values and scales of a row give the row again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_configs import QWEN3_5, RWKV

from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription
from rowpack.graph.dtypes import numpy_dtype
from rowpack.quantization import (
    check_quantization,
    magnitude_name,
    quantize,
    quantized_tensors,
    rounded_up,
    scale_name,
)
from rowpack.surgery.float4_form import GLOBAL_SCALE
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack_loaders.errors import RowpackError

Array = np.ndarray[Any, Any]

QUANTISED = {
    "qwen3_5": {
        "deltanet.in_proj_qkvz",
        "deltanet.out_proj",
        "attention.qkv_proj",
        "attention.o_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
    },
    "rwkv": {
        "time_mixing.key",
        "time_mixing.value",
        "time_mixing.output",
        "channel_mixing.key",
        "channel_mixing.value",
    },
}


def describe(config: dict[str, Any], precision: str) -> ModelDescription:
    names = [tensor.name for tensor in text_tensors_of(config)]
    return find_family(config).describe(config, names, precision, 128)


def random_rows(rows: int = 40, columns: int = 64, seed: int = 0) -> Array:
    """Rows whose largest magnitudes span twelve orders, one of zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * np.logspace(-9, 3, rows)[:, None]
    values[7] = 0
    return values.astype(np.float32)


@pytest.mark.parametrize("work", ["float16", "bfloat16"])
def test_scales_are_rounded_up_by_one_step_at_most(work: str) -> None:
    exact = np.abs(random_rows()).max(axis=1)
    scales = rounded_up(exact, work)
    kind = numpy_dtype(work)
    assert np.array_equal(scales, scales.astype(kind).astype(np.float32)), "scales are stored as they are"
    assert (scales >= exact).all()
    below = (scales.astype(kind).view(np.uint16) - np.uint16(1)).view(kind).astype(np.float32)
    assert (below < exact)[exact > 0].all()
    assert scales[7] > 0, "a row of zeros divides by something"


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
def test_large_projections_are_quantised_and_nothing_else(config: dict[str, Any]) -> None:
    plain = describe(config, "fp16")
    model = quantize(plain, "fp8")
    names = set(quantized_tensors(model))
    family = "rwkv" if config is RWKV else "qwen3_5"
    assert {name.split(".", 2)[2].removesuffix(".weight") for name in names} == QUANTISED[family]
    specs = {spec.name: spec for spec in model.weights}
    for spec in plain.weights:
        if spec.name in names:
            assert specs[spec.name].dtype == "float8_e4m3fn"
            scales = specs[scale_name(spec.name)]
            assert (scales.dtype, scales.shape) == ("float16", spec.shape[:1])
        else:
            assert specs[spec.name] == spec
            assert scale_name(spec.name) not in specs


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
def test_scales_are_no_parameters(config: dict[str, Any]) -> None:
    plain = describe(config, "bf16")
    for quantization in ("fp8", "nvfp4"):
        assert quantize(plain, quantization).parameter_count == plain.parameter_count
        assert quantize(plain, quantization).required_tensors == plain.required_tensors


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_values_times_scales_are_the_weights(config: dict[str, Any], precision: str) -> None:
    """Three bits of mantissa: a sixteenth of each value, and of the smallest normal one below it."""
    plain = {spec.name: spec for spec in describe(config, precision).weights}
    model = quantize(describe(config, precision), "fp8")
    specs = {spec.name: spec for spec in model.weights}
    for name in quantized_tensors(model):
        rows = random_rows(seed=len(name))
        values = rows if plain[name].transform is None else plain[name].transform(rows)
        stored, scales = (
            spec.transform(rows).astype(numpy_dtype(spec.dtype)).astype(np.float32)
            for spec in (specs[name], specs[scale_name(name)])
        )
        found = stored * scales[:, None]
        assert np.isfinite(found).all()
        assert (np.abs(found - values) <= np.abs(values) / 16 + scales[:, None] * 2.0**-10).all()


def stored(spec: Any, rows: Array) -> Array:
    """Return what is stored for ``rows``, widened to float32."""
    return np.asarray(spec.transform(rows).astype(numpy_dtype(spec.dtype)).astype(np.float32))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_four_bit_values_scales_and_magnitudes_are_the_weights(precision: str) -> None:
    """One bit of mantissa: a quarter of each value at most, and a twelfth of the largest of its block below that."""
    config = {**RWKV, "hidden_size": 64, "attention_hidden_size": 64, "intermediate_size": 128}
    model = quantize(describe(config, precision), "nvfp4")
    specs = {spec.name: spec for spec in model.weights}
    names = quantized_tensors(model)
    assert {name.split(".", 2)[2].removesuffix(".weight") for name in names} == QUANTISED["rwkv"]
    for name in names:
        values, scales, magnitudes = specs[name], specs[scale_name(name)], specs[magnitude_name(name)]
        assert (values.dtype, scales.dtype) == ("float4_e2m1fn", "float8_e4m3fn")
        assert scales.shape == (values.shape[0], values.shape[1] // 16)
        assert magnitudes.shape == values.shape[:1]
    plain = {spec.name: spec for spec in describe(config, precision).weights}
    name = "layers.0.time_mixing.value.weight"
    assert plain[name].transform is None
    rows = random_rows()
    blocks = stored(specs[name], rows).reshape(rows.shape[0], -1, 16)
    steps = stored(specs[scale_name(name)], rows)[..., None] * np.float32(GLOBAL_SCALE)
    found = blocks * steps * stored(specs[magnitude_name(name)], rows)[:, None, None]
    wanted = rows.reshape(blocks.shape)
    largest = np.abs(wanted).max(axis=2, keepdims=True)
    assert np.isfinite(found).all()
    assert (np.abs(found - wanted) <= np.maximum(np.abs(wanted) / 4, largest / 12) * 1.13 + 1e-30).all()


def test_rows_that_are_no_whole_blocks_stay_as_they_are() -> None:
    config = {**RWKV, "hidden_size": 24, "attention_hidden_size": 24, "intermediate_size": 32}
    model = quantize(describe(config, "fp16"), "nvfp4")
    assert {name.split(".", 2)[2] for name in quantized_tensors(model)} == {"channel_mixing.value.weight"}


@pytest.mark.parametrize(
    ("quantization", "precision", "code"),
    [
        ("fp7", "fp16", "quantization_unknown"),
        ("fp8", "fp32", "quantization_precision"),
        ("nvfp4", "fp32", "quantization_precision"),
    ],
)
def test_what_cannot_be(quantization: str, precision: str, code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        check_quantization(quantization, precision)
    assert caught.value.code == code


def test_what_can_be() -> None:
    check_quantization(None, "fp32")
    for precision in ("fp16", "bf16"):
        for quantization in ("fp8", "nvfp4"):
            check_quantization(quantization, precision)
