"""Bring 1..N rows to a fixed N inside a chunk subgraph, and cut the result back.

Padded rows are zero: a zero key writes nothing, a zero log decay keeps the state, so they are the identity.
"""

from __future__ import annotations

import numpy as np

from rowpack.graph.emitter import Emitter, Tensor


def padded_rows(prefill_rows: int) -> int:
    """Return the fixed row count inside a chunk: the power of two that holds ``prefill_rows``."""
    return max(2, 1 << (prefill_rows - 1).bit_length())


def pad_rows(emitter: Emitter, x: Tensor, width: int, rows: int, name: str) -> Tensor:
    """Emit ``x [S, width]`` → ``[rows, width]`` with zero rows after the valid ones."""
    zeros = emitter.constant(f"zero_rows_{rows}x{width}", np.zeros((rows, width), np.float32))
    joined = emitter.op("Concat", [x, zeros], f"{name}_and_padding", axis=0)
    return emitter.slice_axis(joined, 0, 0, rows, f"{name}_padded")


def cut_rows(emitter: Emitter, padded: Tensor, like: Tensor, name: str) -> Tensor:
    """Emit the first S rows of ``padded``, S taken from the unpadded tensor ``like``."""
    count = emitter.op("Shape", [like], f"{name}_count", start=0, end=1)
    return emitter.op("Slice", [padded, emitter.ints(0), count, emitter.ints(0)], name)
