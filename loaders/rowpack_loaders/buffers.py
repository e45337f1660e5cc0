"""Hold the states and caches of one sequence in host memory.

A fixed-size state has two buffers, a front and a back: an engine reads the front and writes the back, then the
two change places, so 20 MB of state move by a flag and not by a copy. Where an engine can write a state over
the one it reads, both are one. A cache has one buffer with a row a position: an engine reads the filled rows
and writes its new ones straight behind them. Rows that are not filled are never read, so they need no initial
value and cost no memory until they are used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rowpack_loaders.manifest import StateRecord
from rowpack_loaders.model_description import APPEND_ROWS, ModelDescription

Array = npt.NDArray[Any]

# How many rows a sliding cache moves on before its window is copied to the front of the buffer: the copy of
# the whole window is shared by this many steps.
SLIDE_SLACK_ROWS = 64

# numpy has no bfloat16 of its own; its bits are all that buffers need.
STORAGE_DTYPES: dict[str, npt.DTypeLike] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int32": np.int32,
}


@dataclass(frozen=True)
class SequenceSnapshot:
    """A copy of everything a sequence carries, by state name: whole states, and the filled rows of caches.

    It stays valid whatever its sequence does next, and may be restored into any sequence of the same model.
    ``content_digest`` and ``model_id`` say which model it belongs to.
    """

    model_id: str
    content_digest: str | None
    position: int
    slid_rows: int
    states: Mapping[str, Array]

    @property
    def byte_count(self) -> int:
        """The memory that the copy holds."""
        return sum(array.nbytes for array in self.states.values())


class FixedState(NamedTuple):
    """A state of fixed size: its description and its two buffers, which may be one and the same."""

    record: StateRecord
    pair: tuple[Array, Array]

    @property
    def byte_count(self) -> int:
        """The memory that the buffers take."""
        front, back = self.pair
        return front.nbytes if front is back else front.nbytes + back.nbytes


class RowCache(NamedTuple):
    """A cache with a row a position: its description and its buffer of at least ``capacity`` rows."""

    record: StateRecord
    rows: Array


class SequenceBuffers:
    """The buffers of one sequence, and which parts of them are filled.

    ``position`` counts the rows seen since the start, ``front`` says which buffer of each pair is current,
    and caches are filled from ``cache_start`` for ``cache_rows`` rows. With ``slide`` a full cache drops
    its oldest row (:meth:`drop_oldest_row`) instead of being full. ``in_place`` names states, by their inputs, that
    the engines write over what they read, and ``turned`` those that lie in memory last dimension first.
    """

    def __init__(
        self,
        model: ModelDescription,
        *,
        slide: bool = False,
        in_place: Collection[str] = frozenset(),
        turned: Collection[str] = frozenset(),
    ) -> None:
        self.model = model
        self.slide = slide
        self.capacity_rows = model.limits.max_cache_length
        allocated_rows = self.capacity_rows + (SLIDE_SLACK_ROWS if slide else 0)
        self.fixed = [
            FixedState(state, _front_and_back(state, state.input in in_place, state.input in turned))
            for state in model.states
            if state.update != APPEND_ROWS
        ]
        self.caches = [
            RowCache(state, _empty(state, (allocated_rows, *state.shape[1:])))
            for state in model.states
            if state.update == APPEND_ROWS
        ]
        self.reset()

    def reset(self) -> None:
        """Go back to the start of a sequence: every state at its initial value, no cache row filled."""
        self.position = 0
        self.slid_rows = 0
        self.front = 0
        self.cache_start = 0
        self.cache_rows = 0
        for state in self.fixed:
            state.pair[0][...] = storage_value(state.record.initial_value, state.record.dtype)

    def advance(self, rows: int) -> None:
        """Take note that an engine has written ``rows`` new rows and the states after them."""
        self.front ^= 1
        self.position += rows
        if self.caches:
            self.cache_rows += rows

    def drop_oldest_row(self) -> None:
        """Make room for one more row in a full sliding cache."""
        self.cache_start += 1
        self.cache_rows -= 1
        self.slid_rows += 1
        if self.cache_start + self.cache_rows >= self.capacity_rows + SLIDE_SLACK_ROWS:
            for cache in self.caches:
                window = cache.rows[self.cache_start : self.cache_start + self.cache_rows]
                cache.rows[: self.cache_rows] = window.copy()
            self.cache_start = 0

    def capture(self) -> SequenceSnapshot:
        """Return a copy of the current states and the filled cache rows."""
        states = {state.record.input: state.pair[self.front].copy() for state in self.fixed}
        end = self.cache_start + self.cache_rows
        for cache in self.caches:
            states[cache.record.input] = cache.rows[self.cache_start : end].copy()
        return SequenceSnapshot(self.model.model_id, self.model.content_digest, self.position, self.slid_rows, states)

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Make the sequence what it was when ``snapshot`` (of the same model) was taken."""
        self.position = snapshot.position
        self.slid_rows = snapshot.slid_rows
        self.front = 0
        self.cache_start = 0
        self.cache_rows = snapshot.position - snapshot.slid_rows if self.caches else 0
        for state in self.fixed:
            state.pair[0][...] = snapshot.states[state.record.input]
        for cache in self.caches:
            cache.rows[: self.cache_rows] = snapshot.states[cache.record.input]

    @property
    def byte_count(self) -> int:
        """The address space that the buffers take; cache rows cost memory only once they are filled."""
        fixed = sum(state.byte_count for state in self.fixed)
        return fixed + sum(cache.rows.nbytes for cache in self.caches)


def storage_value(value: float, dtype: str) -> float | int:
    """Return ``value`` as it is stored in a buffer of ``dtype``: for bfloat16 its 16 bits, rounded to
    nearest even.
    """
    if dtype != "bfloat16":
        return value
    bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _front_and_back(state: StateRecord, is_in_place: bool, is_turned: bool) -> tuple[Array, Array]:
    """Return two arrays of the state's shape, or one twice; a turned one is a view of the memory behind it."""

    def buffer() -> Array:
        return _empty(state, state.shape[::-1]).T if is_turned else _empty(state, state.shape)

    front = buffer()
    return front, front if is_in_place else buffer()


def _empty(state: StateRecord, shape: tuple[int, ...]) -> Array:
    return np.empty(shape, dtype=STORAGE_DTYPES[state.dtype])
