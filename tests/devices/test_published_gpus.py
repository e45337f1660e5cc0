"""The table of published GPUs, and finding one by the names people give it."""

from __future__ import annotations

import pytest

from rowpack_loaders import RowpackError
from rowpack_loaders.compatibility.target import normal_compute_capability
from rowpack_loaders.devices.published_gpus import PUBLISHED_GPUS, find_published_gpu


@pytest.mark.parametrize(
    ("name", "gigabytes", "capability"),
    [
        ("L40S", 48, "8.9"),
        ("NVIDIA L40S", 48, "8.9"),
        ("nvidia geforce rtx 4090", 24, "8.9"),
        ("a100-40gb", 40, "8.0"),
        ("A100 80GB", 80, "8.0"),
        ("GB10", 128, "12.1"),
        ("Jetson-AGX-Thor", 128, "11.0"),
        ("Tesla T4", 16, "7.5"),
    ],
)
def test_a_gpu_is_found_by_name(name: str, gigabytes: int, capability: str) -> None:
    gpu = find_published_gpu(name)
    assert (gpu.memory_bytes, gpu.compute_capability) == (gigabytes * 10**9, capability)


def test_an_unknown_gpu_is_refused_with_names_that_come_close() -> None:
    with pytest.raises(RowpackError) as caught:
        find_published_gpu("RTX 4091")
    assert caught.value.code == "gpu_unknown"
    assert "RTX 4090" in str(caught.value.problem.expected)
    with pytest.raises(RowpackError) as caught:
        find_published_gpu("abacus")
    assert "T4" in str(caught.value.problem.expected)


def test_the_table_is_well_formed() -> None:
    names = [gpu.name for gpu in PUBLISHED_GPUS]
    assert len(set(names)) == len(names)
    for gpu in PUBLISHED_GPUS:
        assert find_published_gpu(gpu.name) is gpu
        assert normal_compute_capability(gpu.compute_capability) == gpu.compute_capability
        assert gpu.source.startswith("nvidia.com/")
        assert 0 < gpu.memory_gigabytes < 1000
