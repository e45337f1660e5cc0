"""Bring 1..N rows to a fixed N inside a chunk subgraph, and cut the result back.

Rows that are not there are zero for the delta rule: a zero key writes nothing, a zero log decay keeps the state, so
they are the identity. Other mixers say what has no say in their sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from rowpack.graph.emitter import Emitter, Tensor


def padded_rows(prefill_rows: int) -> int:
    """Return the fixed row count inside a chunk: the power of two that holds ``prefill_rows``."""
    return max(2, 1 << (prefill_rows - 1).bit_length())


@dataclass(frozen=True)
class RowPadding:
    """How many rows a call has, ``count [1]`` (int64), and the ``pads [4]`` of ONNX's Pad that make them N."""

    count: Tensor
    pads: Tensor

    @staticmethod
    def of(emitter: Emitter, x: Tensor, rows: int) -> RowPadding:
        """Emit both for the rows of ``x [S, …]`` and N = ``rows``."""
        count = emitter.op("Shape", [x], "row_count", start=0, end=1)
        missing = emitter.op("Sub", [emitter.ints(rows), count], "missing_rows")
        return RowPadding(count, emitter.op("Concat", [emitter.ints(0, 0), missing, emitter.ints(0)], "pads", axis=0))

    def pad(self, emitter: Emitter, x: Tensor, name: str, value: float = 0.0) -> Tensor:
        """Emit float32 ``x [S, width]`` → ``[N, width]``, ``value`` in the rows that are not there."""
        filler = emitter.scalar("padding" if value else "zero_padding", value, "float32")
        return emitter.op("Pad", [x, self.pads, filler], f"{name}_padded")

    def cut(self, emitter: Emitter, padded: Tensor, name: str) -> Tensor:
        """Emit the first S rows of ``padded``."""
        return emitter.op("Slice", [padded, emitter.ints(0), self.count, emitter.ints(0)], name)
