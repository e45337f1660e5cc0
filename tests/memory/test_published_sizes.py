"""Which published model gets a prefill engine on which published device, in every precision.

A pair of plans holds every weight twice, and may fill four fifths of the device: a pair of Qwen3.5-9B in half
precision takes 2 × 17.92 GB, so a device needs 44.8 GB.
"""

from __future__ import annotations

from functools import cache

import pytest

from rowpack.capacity import find_capacity
from rowpack.families import find_family
from rowpack.gate import Capacity, CapacitySource, WeightNeed, decide_layout
from rowpack.synthesis.published_shapes import PUBLISHED_SHAPES, published_config
from rowpack.synthesis.synthesize import text_tensors_of
from rowpack.weights import plan_weights
from rowpack_loaders.devices.published_gpus import PUBLISHED_GPUS

GB = 10**9

# Gigabytes of the smallest device (of the sizes sold: 8, 12, 16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180) that
# takes a pair: with a copy an engine (plans), and with one copy that both share.
SMALLEST_DEVICE = {
    ("qwen3_5-0.8b", "fp32"): (8, 8),
    ("qwen3_5-0.8b", "half"): (8, 8),
    ("qwen3_5-2b", "fp32"): (24, 12),
    ("qwen3_5-2b", "half"): (12, 8),
    ("qwen3_5-4b", "fp32"): (48, 24),
    ("qwen3_5-4b", "half"): (24, 12),
    ("qwen3_5-9b", "fp32"): (94, 48),
    ("qwen3_5-9b", "half"): (48, 24),
    ("qwen3_5-27b", "fp32"): (None, 141),
    ("qwen3_5-27b", "half"): (141, 80),
    ("rwkv4-169m", "fp32"): (8, 8),
    ("rwkv4-169m", "half"): (8, 8),
    ("rwkv4-430m", "fp32"): (8, 8),
    ("rwkv4-430m", "half"): (8, 8),
    ("rwkv4-1b5", "fp32"): (16, 8),
    ("rwkv4-1b5", "half"): (8, 8),
    ("rwkv4-3b", "fp32"): (32, 16),
    ("rwkv4-3b", "half"): (16, 8),
    ("rwkv4-7b", "fp32"): (80, 40),
    ("rwkv4-7b", "half"): (40, 24),
    ("rwkv4-14b", "fp32"): (180, 80),
    ("rwkv4-14b", "half"): (80, 40),
}


@cache
def weight_bytes(shape: str, precision: str) -> int:
    """Return the bytes of one copy of a published model's weights."""
    config = published_config(shape)
    names = [tensor.name for tensor in text_tensors_of(shape)]
    model = find_family(config).describe(config, names, precision, 4096)
    return plan_weights(model.weights).tensor_bytes


def layout(shape: str, precision: str, copies: int, capacity: Capacity) -> str:
    """Return what ``auto`` decides."""
    stored = weight_bytes(shape, precision)
    engines = {"decode": stored, "prefill": stored}
    return decide_layout(
        "auto",
        weights=WeightNeed(stored, copies, engines, copies * stored),
        state_bytes=0,
        key_value_bytes_per_token=0,
        capacity=capacity,
    ).layout


def test_the_table_names_every_published_size() -> None:
    assert {shape for shape, _ in SMALLEST_DEVICE} == set(PUBLISHED_SHAPES)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", PUBLISHED_SHAPES)
def test_a_pair_is_built_from_the_smallest_device_on(shape: str, precision: str, copies: int) -> None:
    smallest = SMALLEST_DEVICE[shape, "fp32" if precision == "fp32" else "half"][2 - copies]
    for gpu in PUBLISHED_GPUS:
        capacity = find_capacity(None, gpu.name, on_gpu=True)
        assert (capacity.source, capacity.device) == (CapacitySource.TARGET_GPU, gpu.name)
        fits = smallest is not None and gpu.memory_gigabytes >= smallest
        assert layout(shape, precision, copies, capacity) == ("split" if fits else "single"), gpu


def test_a_pair_of_9b_in_half_precision_at_the_boundary() -> None:
    pair = 2 * weight_bytes("qwen3_5-9b", "fp16")
    assert round(pair / GB, 1) == 35.8
    smallest = -(-pair * 100 // 80)
    for capacity_bytes, expected in (
        (48 * GB, "split"),
        (40 * GB, "single"),
        (smallest, "split"),
        (smallest - 1, "single"),
    ):
        capacity = Capacity(capacity_bytes, CapacitySource.TARGET_MEMORY)
        assert layout("qwen3_5-9b", "fp16", 2, capacity) == expected
