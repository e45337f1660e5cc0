"""Which tensors become blocks of whole numbers, and what is stored of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_checkpoints import QWEN, TRAINED

from rowpack.block_quantization import MOST_ROW_COLUMNS, quantize_blocks
from rowpack.checkpoint import open_checkpoint
from rowpack.families import find_family
from rowpack.families.declaration import ModelDescription, WeightSpec
from rowpack.integer_quantization import dequantized, quantized_names, rounded_blocks, scale_name, zero_point_name
from rowpack.quantization import quantize
from rowpack.weights import plan_weights, read_weights, stream_weights
from rowpack_loaders.safetensors_header import parse_header

KEPT_WORDS = ("norm", "conv", "in_proj_ba", "decay", "dt_bias", "receptance", "mix_", "bonus", "embed")

BLOCKS = {
    "int8": {192: 64, 256: 128, 512: 128, 768: 128},
    "int4": dict.fromkeys((192, 256, 512, 768), 32),
}
"""Columns of a block, by the columns that rows of the trained checkpoints have."""


def described(
    checkpoint_folder: Path, width: str, head: str | None = None, embedding: str | None = None
) -> tuple[Any, ModelDescription]:
    """Return the model of a checkpoint as it is, and quantised."""
    with open_checkpoint(checkpoint_folder) as checkpoint:
        plain = find_family(checkpoint.config).describe(checkpoint.config, list(checkpoint.tensors), "fp32", 64)
        dtypes = {name: info.dtype for name, info in checkpoint.tensors.items()}
    return plain, quantize(plain, width, head, dtypes, embedding_quantization=embedding)


@pytest.mark.parametrize("width", ["int8", "int4"])
@pytest.mark.parametrize("family", TRAINED)
def test_gates_decays_convolutions_and_norms_stay_as_they_are(family: str, width: str) -> None:
    plain, model = described(TRAINED[family], width)
    names = set(quantized_names(model))
    stored = {spec.name: spec for spec in model.weights}
    assert names
    for spec in plain.weights:
        if any(word in spec.name for word in KEPT_WORDS):
            assert spec.name not in names
            assert stored[spec.name].part == "embedding" or stored[spec.name] == spec
        else:
            assert spec.name in names, "everything else is a large projection, or the head"
    assert model.parameter_count == plain.parameter_count
    assert model.required_tensors == plain.required_tensors


@pytest.mark.parametrize(("columns", "dtype"), [(MOST_ROW_COLUMNS, "uint8"), (MOST_ROW_COLUMNS + 1, "float32")])
def test_rows_too_long_for_sums_of_32_bits_stay_as_they_are(columns: int, dtype: str) -> None:
    _, model = described(QWEN, "w8a8")
    long = WeightSpec("long.weight", "float32", (2, columns), (), quantizable=True)
    stored = {spec.name: spec for spec in quantize(replace(model, weights=(long,)), "w8a8").weights}
    assert stored["long.weight"].dtype == dtype
    assert (scale_name("long.weight") in stored) == (dtype == "uint8")
    assert columns * 255 * 127 < 2**31 or dtype == "float32"


@pytest.mark.parametrize("family", TRAINED)
def test_the_head_is_stored_by_choice_and_the_table_as_the_checkpoint_has_it(family: str) -> None:
    for head, dtype in ((None, "uint4"), ("int8", "uint8"), ("none", "float32")):
        plain, model = described(TRAINED[family], "int4", head)
        stored = {spec.name: spec for spec in model.weights}
        (table,) = [spec for spec in model.weights if spec.part == "embedding"]
        tied = all(spec.part != "head" for spec in plain.weights)
        if head == "none" and tied:
            assert model.head_name not in stored
            assert table.dtype == "float32"  # it is multiplied, too
        else:
            assert stored[model.head_name].dtype == dtype
            assert table.dtype == "bfloat16"


@pytest.mark.parametrize("family", TRAINED)
@pytest.mark.parametrize(("head", "embedding"), [(None, "int8"), ("int8", "int8"), ("none", "int4"), (None, "int4")])
def test_the_embedding_is_stored_by_choice(family: str, head: str | None, embedding: str) -> None:
    plain, model = described(TRAINED[family], "int4", head, embedding)
    stored = {spec.name: spec for spec in model.weights}
    (table,) = [spec for spec in plain.weights if spec.part == "embedding"]
    dtypes = {"int8": "uint8", "int4": "uint4", "none": "float32"}
    assert stored[table.name].dtype == dtypes[embedding]
    assert stored[scale_name(table.name)].shape == (table.shape[0], table.shape[1] // BLOCKS[embedding][192])
    tied = all(spec.part != "head" for spec in plain.weights)
    if tied and (head or "int4") == embedding:
        assert model.head_name not in stored, "one tensor serves both"
    else:
        assert stored[model.head_name].dtype == dtypes[head or "int4"]
    assert model.parameter_count == plain.parameter_count
    assert model.required_tensors == plain.required_tensors


@pytest.mark.parametrize("width", ["int8", "int4"])
def test_the_section_holds_what_the_rows_quantise_to(width: str) -> None:
    _, model = described(QWEN, width)
    plan = plan_weights(model.weights)
    with open_checkpoint(QWEN) as checkpoint:
        section = b"".join(bytes(piece) for piece in stream_weights(plan, checkpoint))
        restored_plan = plan_weights(dequantized(model).weights)
        restored = read_weights(restored_plan, checkpoint)
    entries = parse_header(memoryview(section), total_bytes=len(section), where="weights")
    bits = 8 if width == "int8" else 4
    for name in quantized_names(model):
        rows = restored[name]
        block = BLOCKS[width][rows.shape[1]]
        blocks = rows.shape[1] // block
        codes, scales, zero_points = (entries[part] for part in (name, scale_name(name), zero_point_name(name)))
        assert (codes.dtype, codes.shape) == ("U8", (rows.shape[0], blocks, block * bits // 8))
        assert (zero_points.dtype, zero_points.shape) == ("U8", (rows.shape[0], blocks * bits // 8))
        numbers = unpacked(section[codes.offset_bytes : codes.end_bytes], bits).reshape(rows.shape[0], blocks, block)
        zeros = unpacked(section[zero_points.offset_bytes : zero_points.end_bytes], bits).reshape(-1, blocks, 1)
        steps = np.frombuffer(section[scales.offset_bytes : scales.end_bytes], np.float32).reshape(-1, blocks, 1)
        assert np.array_equal(((numbers - zeros) * steps).reshape(rows.shape), rows)
    assert set(restored) <= set(entries)


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("family", TRAINED)
def test_rows_are_rounded_in_the_blocks_of_what_they_are_multiplied_with(family: str, width: str) -> None:
    _, model = described(TRAINED[family], width, embedding=width)
    stored = {spec.name: spec for spec in model.weights}
    untied = any(spec.part == "head" for spec in model.weights)
    looked_up = {spec.name for spec in model.weights if spec.part == "embedding" and untied}
    found = rounded_blocks(model)
    assert found.keys() == set(quantized_names(model)) - looked_up
    assert found == {name: BLOCKS[width][stored[name].shape[1]] for name in found}
    assert set(found.values()) == set(BLOCKS[width].values()), "checkpoints have rows of both kinds"


def unpacked(data: bytes, bits: int) -> Any:
    """Return the numbers of packed bytes, the low half first, as float32."""
    values = np.frombuffer(data, np.uint8)
    if bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1)
    return values.astype(np.float32)


def test_rows_that_are_no_whole_blocks_stay_as_they_are() -> None:
    plain, _ = described(QWEN, "int8")
    narrow = next(spec for spec in plain.weights if spec.quantizable)
    odd = narrow.__class__("odd.weight", "float32", (4, 96), narrow.sources, quantizable=True)
    model = quantize(plain.__class__(**{**plain.__dict__, "weights": (odd,)}), "int4")
    assert model.weights == (odd,)


def test_quantised_rows_of_a_constant_weight() -> None:
    rows = np.full((3, 64), 0.25, np.float32)
    assert np.array_equal(quantize_blocks(rows, 4).dequantized(), rows)
