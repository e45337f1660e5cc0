"""Run one sequence on engines that read and write host memory, whichever library executes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rowpack_loaders.buffers import SequenceBuffers, SequenceSnapshot
from rowpack_loaders.manifest import EngineRecord

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray

MASKED = -1e4
WANTS_LOGITS = "rowpack.wants_logits"
"""An input that a loader adds to a graph that computes logits only when it is true; no stored graph has it."""


class BoundEngine(Protocol):
    """One engine over one sequence's buffers, all bound ahead of time."""

    @property
    def token_ids(self) -> IntArray:
        """The engine's token ids, filled before a run."""

    def run(self, rows: int, *, wants_logits: bool = True) -> None:
        """Run ``rows`` rows from the front buffers into the back buffers and the cache rows; then swap."""


class BindEngine(Protocol):
    """Bind an engine, its record and what its library made of it, to buffers, for up to ``max_rows`` rows a run."""

    def __call__(
        self, engine: EngineRecord, loaded: Any, buffers: SequenceBuffers, logits: FloatArray, *, max_rows: int
    ) -> BoundEngine:
        """Return the bound engine, which writes the last row's logits into ``logits``."""


def open_host_sequence(
    bind: BindEngine,
    buffers: SequenceBuffers,
    decode: tuple[EngineRecord, Any],
    prefill: tuple[EngineRecord, Any] | None,
) -> HostSequence:
    """Return a sequence over ``buffers``; each engine is its record and what its library made of it."""
    logits = np.empty((1, buffers.model.vocab_size), dtype=np.float32)
    rows = buffers.model.limits.prefill_rows
    return HostSequence(
        buffers,
        logits,
        bind(*decode, buffers, logits, max_rows=1),
        None if prefill is None else bind(*prefill, buffers, logits, max_rows=rows),
    )


class HostSequence:
    """One sequence: its buffers, bound to the decode engine and to the prefill engine if there is one.

    Both engines write the last row's logits into ``logits [1, vocab]``.
    """

    def __init__(
        self, buffers: SequenceBuffers, logits: FloatArray, decode: BoundEngine, prefill: BoundEngine | None
    ) -> None:
        self.buffers = buffers
        self._logits = logits
        self._decode = decode
        self._prefill = prefill

    @property
    def position(self) -> int:
        """The rows seen since the start."""
        return self.buffers.position

    @property
    def slid_rows(self) -> int:
        """The rows that the sliding cache has dropped."""
        return self.buffers.slid_rows

    def reset(self) -> None:
        """Go back to the start: every state at its initial value."""
        self.buffers.reset()

    def run_step(self, token_id: int) -> FloatArray:
        """Run one row on the decode engine; return its logits [vocab], overwritten by the next run."""
        buffers = self.buffers
        if buffers.slide and buffers.cache_rows == buffers.capacity_rows:
            buffers.drop_oldest_row()
        self._decode.token_ids[0] = token_id
        self._decode.run(1)
        logits: FloatArray = self._logits[0]
        return logits

    def run_chunk(self, token_ids: IntArray) -> FloatArray:
        """Run up to ``prefill_rows`` rows on the prefill engine; return the last row's logits [vocab], as
        above.
        """
        self._run_prefill(token_ids, wants_logits=True)
        logits: FloatArray = self._logits[0]
        return logits

    def run_leading_chunk(self, token_ids: IntArray) -> None:
        """Run a chunk that others follow; the product with the whole vocabulary is left out where it can be."""
        self._run_prefill(token_ids, wants_logits=False)

    def _run_prefill(self, token_ids: IntArray, *, wants_logits: bool) -> None:
        assert self._prefill is not None, "the session asks has_prefill_engine first"
        rows = len(token_ids)
        self._prefill.token_ids[:rows] = token_ids
        self._prefill.run(rows, wants_logits=wants_logits)

    def capture(self) -> SequenceSnapshot:
        """Return a copy of the current states and the filled cache rows."""
        return self.buffers.capture()

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Make the sequence what it was when the copy was taken."""
        self.buffers.restore(snapshot)


class RowInputs:
    """What an engine is told of its rows beside states and caches: token ids, positions, the attention mask.

    ``names`` maps the roles of such inputs to the engine's names for them; an engine has only those it needs.
    ``fixed_cache_rows`` is the number of cache rows of an engine that reads as many in every call, its mask hiding
    the unfilled ones; None for an engine that takes the filled rows.
    """

    def __init__(self, engine: EngineRecord, buffers: SequenceBuffers, max_rows: int) -> None:
        self.names = {tensor.role: tensor.name for tensor in engine.inputs if tensor.role != "state"}
        self.token_ids: IntArray = np.zeros(max_rows, dtype=np.int32)
        self.positions: IntArray = np.zeros(max_rows, dtype=np.int32)
        sizes = [engine.input(cache.record.input).shape[0] for cache in buffers.caches]
        self.fixed_cache_rows = next((size for size in sizes if isinstance(size, int)), None)
        self._row_offsets = np.arange(max_rows, dtype=np.int32)
        self._later_rows = np.triu(np.full((max_rows, max_rows), MASKED, dtype=np.float32), k=1)
        columns = buffers.capacity_rows + 1 if "attention_mask" in self.names else 0
        self._open_mask = np.zeros((1, columns), dtype=np.float32)

    def place(self, position: int, rows: int) -> None:
        """Fill the positions of ``rows`` rows that follow ``position`` earlier ones."""
        np.add(self._row_offsets[:rows], np.int32(position), out=self.positions[:rows])

    def mask(self, rows: int, filled: int, read_rows: int) -> FloatArray:
        """Return the additive mask [rows, read_rows + rows], contiguous, to be kept as long as it is bound.

        Row t sees every one of the ``filled`` cache rows and the new rows up to itself.
        """
        if rows == 1 and read_rows == filled:
            return self._open_mask[:, : filled + 1]
        mask = np.zeros((rows, read_rows + rows), dtype=np.float32)
        mask[:, filled:read_rows] = MASKED
        mask[:, read_rows:] = self._later_rows[:rows, :rows]
        return mask
