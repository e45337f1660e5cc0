"""Measure how fast this machine reads memory, and what reading a model's weights once must take at least.

Decoding one token reads every weight once and does two operations on each, so memory decides: bytes over bandwidth
is the time below which no step of that precision can go. Bandwidth is measured in the same run with as many threads:
each reduces its own part of a buffer several times larger than the last-level cache by a numpy loop that loads, never
stores, and releases the interpreter lock. Several loops are tried and the fastest pass of the fastest loop counts: a
slow probe would make the bar easy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BUFFER_BYTES = 512 * 2**20
PASSES = 6

Array = np.ndarray[Any, Any]
LOOPS: dict[str, Callable[[Array], object]] = {
    "maximum of int64": lambda part: part.view(np.int64).max(),
    "bitwise or of int64": lambda part: np.bitwise_or.reduce(part.view(np.int64)),
    "count of non-zero bytes": lambda part: np.count_nonzero(part.view(np.bool_)),
    "sum of float32": lambda part: part.view(np.float32).sum(),
}
EMBEDDINGS = ("embed_tokens", "embeddings")
HEADS = ("head", "lm_head")


@dataclass(frozen=True)
class Bandwidth:
    """Give bytes read a second, and by which loop."""

    bytes_per_second: float
    loop: str


def measure_read_bandwidth(threads: int, buffer_bytes: int = BUFFER_BYTES, passes: int = PASSES) -> Bandwidth:
    """Return the best of every loop and pass."""
    buffer = np.ones(buffer_bytes // 8, np.int64)
    parts = np.array_split(buffer, threads)
    best = Bandwidth(0.0, "")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(passes):
            for name, loop in LOOPS.items():
                start = time.perf_counter()
                list(pool.map(loop, parts))
                rate = buffer.nbytes / (time.perf_counter() - start)
                if rate > best.bytes_per_second:
                    best = Bandwidth(rate, name)
    return best


def bytes_read_a_token(tensors: Iterable[tuple[str, int, int]]) -> int:
    """Return the weight bytes that one decoded token reads: all, but one row of an embedding that is not the head too.

    ``tensors``: name, bytes and rows of each, named as bundles name them.
    """
    listed = list(tensors)
    has_head = any(name.split(".")[0] in HEADS for name, _, _ in listed)
    return sum(
        byte_count // rows if has_head and name.split(".")[0] in EMBEDDINGS else byte_count
        for name, byte_count, rows in listed
    )


def weight_tensors(bundle_path: Path) -> list[tuple[str, int, int]]:
    """Return name, bytes and rows of every weight of a bundle, by the header of its weights."""
    from rowpack_loaders import open_bundle
    from rowpack_loaders.safetensors_header import parse_header

    with open_bundle(bundle_path) as bundle:
        section = bundle.section_view("weights.safetensors")
        entries = parse_header(section, total_bytes=len(section), where=str(bundle_path))
        del section
    return [
        (name, entry.end_bytes - entry.offset_bytes, entry.shape[0] if entry.shape else 1)
        for name, entry in entries.items()
    ]
