"""The weight section: a safetensors file that any reader takes, streamed in pieces, refused when a value is lost."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors import numpy as safetensors_numpy
from small_configs import QWEN3_5, RWKV

from rowpack import weights
from rowpack.families import find_family
from rowpack.families.declaration import WeightSource, WeightSpec
from rowpack.families.rwkv4.tables import divide_by_power_of_two
from rowpack.families.transforms import negative_exponential
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack.weights import PlacedWeight, WeightPlan, plan_weights, read_weights, stream_weights
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.safetensors_header import parse_header

Array = np.ndarray[Any, Any]


class Tensors:
    """A checkpoint of tensors given by name, which notes the rows that were read."""

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values
        self.reads: list[tuple[str, int, int]] = []

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        self.reads.append((name, start, stop))
        return self.values[name][start:stop]


def one(values: Array, dtype: str = "float32", transform: Any = None) -> tuple[WeightPlan, Tensors]:
    """Return the plan and checkpoint of a single tensor ``w``, called ``stored.w`` in the checkpoint."""
    source = WeightSource("stored.w", values.shape)
    return plan_weights([WeightSpec("w", dtype, values.shape, (source,), transform)]), Tensors({"stored.w": values})


def section(plan: WeightPlan, tensors: Tensors) -> bytes:
    return b"".join(bytes(piece) for piece in stream_weights(plan, tensors))


def family_plan(config: dict[str, Any], precision: str) -> tuple[WeightPlan, Tensors]:
    names = [tensor.name for tensor in text_tensors_of(config)]
    model = find_family(config).describe(config, names, precision, 64)
    rng = np.random.default_rng(0)
    values = {
        name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for name, shape in model.required_tensors.items()
    }
    return plan_weights(model.weights), Tensors(values)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("config", [QWEN3_5, RWKV], ids=["qwen3_5", "rwkv"])
def test_the_section_is_a_safetensors_file_with_the_planned_tensors(config: dict[str, Any], precision: str) -> None:
    plan, tensors = family_plan(config, precision)
    blob = section(plan, tensors)
    assert len(blob) == plan.section_bytes
    expected = read_weights(plan, tensors)
    found = safetensors.deserialize(blob)
    assert [name for name, _ in sorted(found)] == sorted(expected)
    for name, facts in found:
        assert tuple(facts["shape"]) == expected[name].shape
        assert bytes(facts["data"]) == expected[name].tobytes()
    if precision != "bf16":  # NumPy has no such type, so the library cannot hand one out
        loaded = safetensors_numpy.load(blob)
        assert all(loaded[name].dtype == value.dtype for name, value in expected.items())


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_plan_says_where_each_tensor_lies(precision: str) -> None:
    plan, tensors = family_plan(QWEN3_5, precision)
    blob = section(plan, tensors)
    entries = parse_header(blob, total_bytes=len(blob), where="weights")
    expected = read_weights(plan, tensors)
    for placed in plan.tensors:
        entry = entries[placed.spec.name]
        assert (entry.offset_bytes, entry.byte_count) == (placed.offset_bytes, placed.byte_count)
        stored = blob[placed.offset_bytes : placed.offset_bytes + placed.byte_count]
        assert stored == expected[placed.spec.name].tobytes()


def test_tensors_are_aligned_to_their_elements_and_follow_without_gaps() -> None:
    plan, _ = family_plan(QWEN3_5, "fp16")

    def width(placed: PlacedWeight) -> int:
        return {"float32": 4, "float16": 2}[placed.spec.dtype]

    assert len(plan.header) % 4096 == 0
    offset = len(plan.header)
    for placed in plan.tensors:
        assert placed.offset_bytes == offset
        assert offset % width(placed) == 0
        offset += placed.byte_count
    assert offset == plan.section_bytes == len(plan.header) + plan.tensor_bytes
    widths = [width(placed) for placed in plan.tensors]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 2


def test_rows_are_read_in_pieces_that_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(23 * 7, dtype=np.float32).reshape(23, 7)
    sources = (WeightSource("a", (23, 7)), WeightSource("b", (2, 7)))
    plan = plan_weights([WeightSpec("w", "float16", (25, 7), sources, lambda rows: rows + 1)])
    tensors = Tensors({"a": values, "b": -values[:2]})
    monkeypatch.setattr(weights, "PIECE_BYTES", 5 * 7 * 4)
    blob = section(plan, tensors)
    assert tensors.reads == [("a", start, min(start + 5, 23)) for start in range(0, 23, 5)] + [("b", 0, 2)]
    joined = np.concatenate([values + 1, 1 - values[:2]]).astype(np.float16)
    assert blob[len(plan.header) :] == joined.tobytes()


def test_a_row_wider_than_a_piece_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, tensors = one(np.ones((3, 10), np.float32))
    monkeypatch.setattr(weights, "PIECE_BYTES", 8)
    section(plan, tensors)
    assert tensors.reads == [("stored.w", 0, 1), ("stored.w", 1, 2), ("stored.w", 2, 3)]


@pytest.mark.parametrize("stored", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_are_rounded_to_the_nearest(dtype: str, stored: Any) -> None:
    values = np.linspace(-3, 3, 64).reshape(8, 8).astype(stored)
    plan, tensors = one(values, dtype)
    found = read_weights(plan, tensors)["w"]
    target = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    np.testing.assert_array_equal(found, values.astype(np.float32).astype(target))


def refused(plan: WeightPlan, tensors: Tensors, code: str) -> RowpackError:
    with pytest.raises(RowpackError) as caught:
        section(plan, tensors)
    assert caught.value.code == code
    assert caught.value.problem.where == "stored.w", "named as the user's checkpoint has it"
    return caught.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nan_and_infinity_are_refused(dtype: str, stored: Any, value: float) -> None:
    values = np.ones((4, 4), np.float32)
    values[3, 2] = value
    error = refused(*one(values.astype(stored), dtype), "weight_not_finite")
    assert error.problem.found == str(np.float32(value))


@pytest.mark.parametrize("value", [65520.0, -65520.0, 1e6, 3e38])
def test_a_value_too_large_for_float16_is_refused(value: float) -> None:
    values = np.ones((4, 4), np.float32)
    values[1, 1] = value
    error = refused(*one(values, "float16"), "weight_overflow")
    assert f"{abs(value):g}" in str(error.problem.found) and "65504" in str(error.problem.expected)
    assert "--precision fp32" in str(error.problem.remedy)
    section(*one(values, "bfloat16"))


def test_the_largest_float16_still_fits() -> None:
    values = np.array([[65504.0, -65519.0]], np.float32)
    np.testing.assert_array_equal(read_weights(*one(values, "float16"))["w"], [[65504, -65504]])


def test_a_value_too_large_for_bfloat16_is_refused() -> None:
    values = np.array([[np.finfo(np.float32).max]], np.float32)
    assert "bfloat16" in str(refused(*one(values, "bfloat16"), "weight_overflow").problem.expected)


def test_a_float64_value_too_large_for_float32_is_refused() -> None:
    error = refused(*one(np.array([[1e300]]), "float32"), "weight_overflow")
    assert "--precision" not in str(error.problem.remedy), "no type is wider than the one that was asked for"


def test_a_decay_whose_exponential_overflows_is_refused() -> None:
    """exp(89) is infinite in float32: stored as it is, every step would be NaN."""
    values = np.array([1.0, 89.0], np.float32)
    refused(*one(values, "float32", negative_exponential), "weight_overflow")


def test_only_what_is_stored_must_fit() -> None:
    """Rescaled projections of RWKV are stored divided."""
    values = np.full((2, 2), 2.0**17, np.float32)
    found = read_weights(*one(values, "float16", divide_by_power_of_two(2)))["w"]
    np.testing.assert_array_equal(found, np.full((2, 2), 2.0**15))
    refused(*one(values, "float16"), "weight_overflow")
