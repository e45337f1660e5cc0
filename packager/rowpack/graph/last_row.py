"""The last of several rows: all that is read behind a model's last mixer."""

from __future__ import annotations

from rowpack.graph.emitter import Emitter, Tensor


def last_row(emitter: Emitter, rows: Tensor, name: str, *, dtype: str, width: int, row_count: str) -> Tensor:
    """Emit the last of ``rows [row_count, width]`` as ``[1, width]``; both are declared, for passes to decide by."""
    emitter.declare(rows, dtype, [row_count, width])
    return emitter.op("Gather", [rows, emitter.ints(-1)], name, dtype=dtype, shape=[1, width], axis=0)
