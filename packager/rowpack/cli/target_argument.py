"""Read the machine that ``--target`` describes: ``sm=8.9,trt_rtx=1.7.1.116,os=linux,arch=x86_64,memory=24GiB``."""

from __future__ import annotations

from rowpack.units import parse_bytes
from rowpack_loaders.compatibility.target import (
    Target,
    normal_arch,
    normal_compute_capability,
    normal_os,
    version_numbers,
)
from rowpack_loaders.devices.published_gpus import find_published_gpu
from rowpack_loaders.errors import RowpackError

RUNTIMES = ("ort", "openvino", "trt", "trt_rtx")
KEYS = ("gpu", "sm", "memory", "os", "arch", "cpu", "driver", *RUNTIMES)
FEWEST_VERSION_PARTS = {"ort": 2, "openvino": 2, "trt": 3, "trt_rtx": 3, "driver": 1}
"""A plan runs on one version exactly, so half a version would decide nothing."""

EXAMPLE_VERSIONS = {
    "ort": "1.23",
    "openvino": "2026.4",
    "trt": "11.4.0.12",
    "trt_rtx": "1.7.1.116",
    "driver": "580.65",
}

NO_GPU = "none"


def parse_target(text: str) -> Target:
    """Return the machine that ``text`` describes; what it does not name stays unknown.

    ``gpu=NAME`` takes compute capability and memory from the table of published GPUs, ``sm=none`` says that there is
    no GPU; ``memory`` is that of the device the engines run on; ``cpu=avx2+avx512_bf16`` lists instruction sets. Raises
    ``target_unusable`` for an unknown or repeated key or a value that is none, ``gpu_unknown`` and ``bad_size``.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value or key not in KEYS:
            raise _unusable(part.strip() or "nothing", f"key=value with a key of {', '.join(KEYS)}")
        if key in given:
            raise _unusable(f"{key} twice", "each key once")
        given[key] = value
    gpu = find_published_gpu(given["gpu"]) if "gpu" in given else None
    capability = None if gpu is None else gpu.compute_capability
    has_gpu = None if gpu is None else True
    memory_bytes = None if gpu is None else gpu.memory_bytes
    if "sm" in given:
        has_gpu = given["sm"] != NO_GPU
        capability = normal_compute_capability(given["sm"]) if has_gpu else None
        if has_gpu and capability is None:
            raise _unusable(f"sm={given['sm']}", f"a compute capability such as sm=8.9, or sm={NO_GPU}")
    if "memory" in given:
        memory_bytes = parse_bytes(given["memory"])
    return Target(
        os=normal_os(given["os"]) if "os" in given else None,
        arch=normal_arch(given["arch"]) if "arch" in given else None,
        cpu_features=frozenset(given["cpu"].lower().split("+")) if "cpu" in given else None,
        compute_capability=capability,
        has_gpu=has_gpu,
        driver=_version("driver", given),
        device_memory_bytes=memory_bytes,
        host_memory_bytes=memory_bytes if gpu is None or "memory" in given else None,
        runtimes={name: str(_version(name, given)) for name in RUNTIMES if name in given},
    )


def _version(key: str, given: dict[str, str]) -> str | None:
    if key not in given:
        return None
    if len(version_numbers(given[key])) < FEWEST_VERSION_PARTS[key]:
        raise _unusable(f"{key}={given[key]}", f"a whole version, such as {key}={EXAMPLE_VERSIONS[key]}")
    return given[key]


def _unusable(found: str, expected: str) -> RowpackError:
    return RowpackError(
        "target_unusable",
        "the target is not described in a way that can be used",
        where="--target",
        found=found,
        expected=expected,
        remedy="For example: --target sm=8.9,trt_rtx=1.7.1.116,os=linux,arch=x86_64,memory=24GiB",
    )
