"""Compare the weight sections: which tensors, and how far apart their values are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rowpack.comparison.difference import Difference, Pair
from rowpack_loaders.bundle import Bundle
from rowpack_loaders.safetensors_header import TensorEntry, parse_header

WEIGHTS_SECTION = "weights.safetensors"

_PIECE_BYTES = 8 * 2**20
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def weight_differences(pair: Pair) -> Iterator[Difference]:
    """Yield the tensors that only one side has, of another form, or with other values."""
    if not pair.common([WEIGHTS_SECTION]) or pair.same_section(WEIGHTS_SECTION):
        return
    first, second = _tensors(pair.first), _tensors(pair.second)
    found = False
    for name in [*first, *(name for name in second if name not in first)]:
        difference = _difference(pair, name, first.get(name), second.get(name))
        if difference is not None:
            found = True
            yield difference
    if not found:
        yield Difference("weights", WEIGHTS_SECTION, "the tensors are the same, in another order or with other headers")


def _difference(pair: Pair, name: str, first: TensorEntry | None, second: TensorEntry | None) -> Difference | None:
    if first is None or second is None:
        owner = "second" if first is None else "first"
        return Difference("weights", name, f"only the {owner} has it", _form(first), _form(second))
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return Difference("weights", name, "has another form", _form(first), _form(second))
    changed, largest = _distance(pair, first, second)
    if not changed:
        return None
    count = max(first.byte_count * 8 // _bits(first), 1)
    apart = "" if largest is None else f", at most {largest:.3g} apart"
    return Difference("weights", name, f"{changed:,} of {count:,} values differ{apart} ({_form(first)})")


def _distance(pair: Pair, first: TensorEntry, second: TensorEntry) -> tuple[int, float | None]:
    """Return how many values differ and the largest difference (None for element types without arithmetic here)."""
    views = (pair.first.section_view(WEIGHTS_SECTION), pair.second.section_view(WEIGHTS_SECTION))
    changed, largest = 0, None
    width = max(_bits(first) // 8, 1)
    for start in range(0, first.byte_count, _PIECE_BYTES):
        stop = min(start + _PIECE_BYTES, first.byte_count)
        one, other = (
            np.frombuffer(view[entry.offset_bytes + start : entry.offset_bytes + stop], dtype=np.uint8)
            for view, entry in zip(views, (first, second), strict=True)
        )
        if np.array_equal(one, other):
            continue
        changed += int(np.any((one != other).reshape(-1, width), axis=1).sum())
        numbers = [_numbers(piece, first.dtype) for piece in (one, other)]
        if numbers[0] is not None and numbers[1] is not None:
            apart = float(np.abs(numbers[0] - numbers[1]).max())
            largest = apart if largest is None else max(largest, apart)
    return changed, largest


def _numbers(data: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any] | None:
    """Return the values in float64; bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype not in _DTYPES:
        return None
    return data.view(np.dtype(_DTYPES[dtype]).newbyteorder("<")).astype(np.float64)


def _bits(entry: TensorEntry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return entry.byte_count * 8 // count if count else 8


def _form(entry: TensorEntry | None) -> str | None:
    return None if entry is None else f"{entry.dtype} {list(entry.shape)}"


def _tensors(bundle: Bundle) -> dict[str, TensorEntry]:
    view = bundle.section_view(WEIGHTS_SECTION)
    return parse_header(view, total_bytes=len(view), where=f"{bundle.path}: {WEIGHTS_SECTION}")
