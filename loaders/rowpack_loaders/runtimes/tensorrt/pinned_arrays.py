"""The pinned host memory of one sequence: what goes up before a run, and the logits that come down."""

from __future__ import annotations

import weakref
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rowpack_loaders.runtimes.tensorrt.interfaces import Device

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray


class PinnedArrays:
    """Arrays over one pinned allocation, given back when the object is gone."""

    def __init__(self, device: Device, most_rows: int, capacity_rows: int, vocab_size: int) -> None:
        mask_bytes = 4 * most_rows * (capacity_rows + most_rows)
        memory = device.allocate_pinned(8 * most_rows + mask_bytes + 4 * vocab_size)
        self._release = weakref.finalize(self, memory.free)
        self._bytes = memory.view
        self._capacity_rows = capacity_rows
        ends = np.cumsum([0, 4 * most_rows, 4 * most_rows, mask_bytes, 4 * vocab_size])
        tokens, positions, mask, logits = (self._bytes[start:end] for start, end in pairwise(ends))
        self._parts = {"token_id": tokens, "position_id": positions, "attention_mask": mask}
        self.logits_bytes = logits
        self.logits: FloatArray = np.frombuffer(logits, np.float32)

    def fill(self, token_ids: IntArray, position: int) -> None:
        """Put in token ids, and the positions that follow ``position`` earlier rows."""
        rows = len(token_ids)
        self._array("token_id", np.int32)[:rows] = token_ids
        self._array("position_id", np.int32)[:rows] = np.arange(position, position + rows, dtype=np.int32)

    def mask(self, rows: int) -> FloatArray:
        """Return the additive mask of a run, [rows, capacity + rows], to be filled."""
        columns = self._capacity_rows + rows
        mask: FloatArray = self._array("attention_mask", np.float32)[: rows * columns].reshape(rows, columns)
        return mask

    def bytes_of(self, role: str, rows: int) -> memoryview:
        """Return the bytes that a run of ``rows`` rows takes of an input."""
        columns = self._capacity_rows + rows if role == "attention_mask" else 1
        return self._parts[role][: 4 * rows * columns]

    def _array(self, role: str, dtype: Any) -> Any:
        return np.frombuffer(self._parts[role], dtype)
