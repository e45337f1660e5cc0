"""The device memory of one sequence: one allocation, cut into states, caches and what goes in and out of a run.

States of fixed size have a front and a back, which change places after a run. A cache has a row a position; an engine
writes its new rows into a staging range, from where they are copied to their places: an address inside a cache is not
one that a library takes, nor one that a recorded run could change.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from rowpack_loaders.manifest import StateRecord
from rowpack_loaders.model_description import APPEND_ROWS, ModelDescription
from rowpack_loaders.runtimes.tensorrt.geometry import DTYPE_BYTES
from rowpack_loaders.runtimes.tensorrt.interfaces import Device

ALIGNMENT_BYTES = 256
"""What libraries demand of the address of an input or output."""


@dataclass(frozen=True)
class FixedState:
    """A state of fixed size and the addresses of its two buffers."""

    record: StateRecord
    pair: tuple[int, int]
    byte_count: int


@dataclass(frozen=True)
class RowCache:
    """A cache, where its rows begin, and where an engine writes new ones."""

    record: StateRecord
    rows: int
    staging: int
    row_bytes: int


class DeviceBuffers:
    """All device memory of one sequence, given back when the object is gone."""

    def __init__(self, model: ModelDescription, device: Device, most_rows: int) -> None:
        plan = _Layout()
        capacity = model.limits.max_cache_length
        states, caches = [], []
        for state in model.states:
            if state.update == APPEND_ROWS:
                row_bytes = _byte_count(state) // state.shape[0]
                caches.append((state, plan.place(capacity * row_bytes), plan.place(most_rows * row_bytes), row_bytes))
            else:
                count = _byte_count(state)
                states.append((state, plan.place(count), plan.place(count), count))
        tokens, positions = plan.place(4 * most_rows), plan.place(4 * most_rows)
        mask = plan.place(4 * most_rows * (capacity + most_rows))
        logits = plan.place(4 * model.vocab_size)
        self.byte_count = plan.byte_count
        base = device.allocate(plan.byte_count)
        self._release = weakref.finalize(self, device.free, base)
        self.states = [FixedState(state, (base + one, base + two), count) for state, one, two, count in states]
        self.caches = [RowCache(state, base + rows, base + new, count) for state, rows, new, count in caches]
        self.token_ids, self.positions = base + tokens, base + positions
        self.mask, self.logits = base + mask, base + logits
        for cache in self.caches:
            # Rows that are not filled count for nothing, whatever they hold; zeros keep that cheap to believe.
            device.zero(cache.rows, capacity * cache.row_bytes)


class _Layout:
    """Places of ranges in one allocation."""

    def __init__(self) -> None:
        self.byte_count = 0

    def place(self, byte_count: int) -> int:
        """Return the offset of a new range."""
        offset = self.byte_count
        self.byte_count += -(-byte_count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return offset


def _byte_count(state: StateRecord) -> int:
    count = DTYPE_BYTES[state.dtype]
    for extent in state.shape:
        count *= extent
    return count
