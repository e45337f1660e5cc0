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
    LARGEST_FLOAT8,
    check_quantization,
    quantize,
    quantized_tensors,
    row_scales,
    scale_name,
)
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
def test_no_value_exceeds_the_type_by_its_scale(work: str) -> None:
    rows = random_rows()
    scales = row_scales(rows, work)
    assert np.array_equal(scales, scales.astype(numpy_dtype(work)).astype(np.float32)), "scales are stored as they are"
    assert (scales > 0).all()
    assert np.abs(rows / scales[:, None]).max() <= LARGEST_FLOAT8


@pytest.mark.parametrize("work", ["float16", "bfloat16"])
def test_scales_are_no_larger_than_they_must_be(work: str) -> None:
    rows = random_rows()
    scales = row_scales(rows, work)
    exact = np.abs(rows).max(axis=1) / LARGEST_FLOAT8
    steps = np.spacing(scales.astype(np.float16)).astype(np.float32) if work == "float16" else scales * 2.0**-7
    assert (scales - exact <= steps)[exact > 0].all()


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
def test_large_projections_are_quantised_and_nothing_else(config: dict[str, Any]) -> None:
    plain = describe(config, "fp16")
    model = quantize(plain)
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
    assert quantize(plain).parameter_count == plain.parameter_count
    assert quantize(plain).required_tensors == plain.required_tensors


@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_values_times_scales_are_the_weights(config: dict[str, Any], precision: str) -> None:
    """Three bits of mantissa: a sixteenth of each value, and of the smallest normal one below it."""
    plain = {spec.name: spec for spec in describe(config, precision).weights}
    model = quantize(describe(config, precision))
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


@pytest.mark.parametrize(
    ("quantization", "precision", "code"),
    [("fp7", "fp16", "quantization_unknown"), ("fp8", "fp32", "quantization_precision")],
)
def test_what_cannot_be(quantization: str, precision: str, code: str) -> None:
    with pytest.raises(RowpackError) as caught:
        check_quantization(quantization, precision)
    assert caught.value.code == code


def test_what_can_be() -> None:
    check_quantization(None, "fp32")
    for precision in ("fp16", "bf16"):
        check_quantization("fp8", precision)
