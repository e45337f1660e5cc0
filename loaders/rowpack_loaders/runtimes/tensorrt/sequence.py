"""Run one sequence on TensorRT engines over its own device memory.

A run is: token ids, positions and mask go up; the engine reads the front states and writes the back ones, and new
cache rows into their staging; those rows are copied to their places; the last row's logits come down. A decode run
always has the same addresses but for front and back, so it is recorded once for each and launched from then on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from rowpack_loaders.buffers import STORAGE_DTYPES, SequenceSnapshot, storage_value
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.model_description import ModelDescription
from rowpack_loaders.runtimes.tensorrt.device_buffers import DeviceBuffers, RowCache
from rowpack_loaders.runtimes.tensorrt.geometry import run_shape
from rowpack_loaders.runtimes.tensorrt.interfaces import Device, DeviceError, Graph, PlanContext
from rowpack_loaders.runtimes.tensorrt.pinned_arrays import PinnedArrays

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray
    from rowpack_loaders.runtimes.tensorrt.runtime import LoadedEngine, TensorRtRuntime

MASKED = -1e4
RUNS_BEFORE_RECORDING = 1
"""A library settles its shapes in a first run, which must not be recorded."""


class TensorRtSequence:
    """One sequence; see :class:`rowpack_loaders.runtimes.SequenceState`."""

    def __init__(self, runtime: TensorRtRuntime, *, slide: bool) -> None:
        self._runtime = runtime
        self._device: Device = runtime.device
        self.model: ModelDescription = runtime.model
        self._capacity_rows = self.model.limits.max_cache_length
        self._slide = slide
        most_rows = self.model.limits.prefill_rows if runtime.prefill is not None else 1
        with runtime.turn():
            self._buffers = DeviceBuffers(self.model, self._device, most_rows)
            self._host = PinnedArrays(self._device, most_rows, self._capacity_rows, self.model.vocab_size)
        self._graphs: dict[int, Graph] = {}
        self._runs = [0, 0]
        self.reset()

    @property
    def position(self) -> int:
        """The rows seen since the start."""
        return self._position

    @property
    def slid_rows(self) -> int:
        """The rows that the sliding cache has dropped."""
        return max(0, self._position - self._capacity_rows) if self._buffers.caches else 0

    def reset(self) -> None:
        """Go back to the start: every state at its initial value."""
        self._position = self._front = 0
        with self._runtime.turn():
            for state in self._buffers.states:
                if state.record.initial_value == 0:
                    self._device.zero(state.pair[0], state.byte_count)
                else:
                    dtype = STORAGE_DTYPES[state.record.dtype]
                    value = storage_value(state.record.initial_value, state.record.dtype)
                    self._upload(state.pair[0], np.full(state.record.shape, value, dtype))
            self._device.synchronize()

    def run_step(self, token_id: int) -> FloatArray:
        """Run one row on the decode engine; return its logits [vocab], overwritten by the next run."""
        self._run(self._runtime.decode, np.array([token_id], np.int32), wants_logits=True)
        return self._host.logits

    def run_chunk(self, token_ids: IntArray) -> FloatArray:
        """Run up to ``prefill_rows`` rows on the prefill engine; return the last row's logits [vocab], as above."""
        self._run(self._prefill_engine, token_ids, wants_logits=True)
        return self._host.logits

    def run_leading_chunk(self, token_ids: IntArray) -> None:
        """Run a chunk that more rows follow: its logits stay on the device."""
        self._run(self._prefill_engine, token_ids, wants_logits=False)

    def capture(self) -> SequenceSnapshot:
        """Return a copy of the current states and the filled cache rows, oldest first."""
        states: dict[str, Any] = {}
        with self._runtime.turn():
            for state in self._buffers.states:
                states[state.record.input] = self._download(state.pair[self._front], state.record.shape, state.record)
            for cache in self._buffers.caches:
                rows = self._download(cache.rows, (self._filled_rows, cache.record.shape[1]), cache.record)
                states[cache.record.input] = np.roll(rows, -self._oldest_row, axis=0)
        return SequenceSnapshot(self.model.model_id, self.model.content_digest, self._position, self.slid_rows, states)

    def restore(self, snapshot: SequenceSnapshot) -> None:
        """Make the sequence what it was when the copy was taken, on this or another runtime."""
        self._position, self._front = snapshot.position, 0
        with self._runtime.turn():
            for state in self._buffers.states:
                self._upload(state.pair[0], snapshot.states[state.record.input])
            for cache in self._buffers.caches:
                rows = snapshot.states[cache.record.input]
                if len(rows):
                    self._upload(cache.rows, np.roll(rows, self._oldest_row, axis=0))
            self._device.synchronize()

    @property
    def _prefill_engine(self) -> LoadedEngine:
        assert self._runtime.prefill is not None, "the session asks has_prefill_engine first"
        return self._runtime.prefill

    @property
    def _filled_rows(self) -> int:
        return min(self._position, self._capacity_rows) if self._buffers.caches else 0

    @property
    def _oldest_row(self) -> int:
        """Where the oldest row of a sliding cache lies: rows go round."""
        return self._position % self._capacity_rows if self.slid_rows else 0

    def _run(self, engine: LoadedEngine, token_ids: IntArray, *, wants_logits: bool) -> None:
        rows = len(token_ids)
        with self._runtime.turn():
            try:
                self._host.fill(token_ids, self._position)
                self._fill_mask(rows)
                self._send(engine.record, rows)
                self._launch(engine, rows)
                for cache in self._buffers.caches:
                    self._place_rows(cache, rows)
                if wants_logits:
                    self._device.download(self._host.logits_bytes, self._buffers.logits)
                self._device.synchronize()
            except BaseException:
                self._drain()
                raise
        self._front ^= 1
        self._position += rows

    def _fill_mask(self, rows: int) -> None:
        """Open the filled cache rows, and of the new rows those up to each row's own."""
        if not self._buffers.caches:
            return
        mask = self._host.mask(rows)
        mask[:, : self._capacity_rows] = MASKED
        mask[:, : self._filled_rows] = 0
        if self._slide and self._filled_rows == self._capacity_rows:
            mask[:, self._position % self._capacity_rows] = MASKED  # the row that the new one will replace
        mask[:, self._capacity_rows :] = np.triu(np.full((rows, rows), MASKED, np.float32), k=1)

    def _send(self, engine: EngineRecord, rows: int) -> None:
        places = {"token_id": self._buffers.token_ids, "position_id": self._buffers.positions}
        for tensor in engine.inputs:
            if tensor.role in places:
                self._device.upload(places[tensor.role], self._host.bytes_of(tensor.role, rows))
            elif tensor.role == "attention_mask":
                self._device.upload(self._buffers.mask, self._host.bytes_of(tensor.role, rows))

    def _launch(self, engine: LoadedEngine, rows: int) -> None:
        """Run the engine: a decode run from its recording, where there is one or can be one."""
        front = self._front
        if engine is not self._runtime.decode or not self._runtime.records_runs:
            self._bind(engine, rows)
            engine.context.execute()
            return
        if front in self._graphs:
            self._graphs[front].launch()
            return
        self._bind(engine, rows)
        self._runs[front] += 1
        if self._runs[front] <= RUNS_BEFORE_RECORDING or not engine.context.can_be_captured():
            engine.context.execute()
            return
        try:
            self._graphs[front] = self._runtime.keep(self, self._device.capture(engine.context.execute))
        except DeviceError:
            # What cannot be recorded is run as it is from now on, by every sequence.
            self._runtime.records_runs = False
            engine.context.execute()
            return
        self._graphs[front].launch()

    def _bind(self, engine: LoadedEngine, rows: int) -> None:
        """Tell the context every shape and address; another sequence may have used it since."""
        context, buffers, front = engine.context, self._buffers, self._front
        places = {
            "token_id": buffers.token_ids,
            "position_id": buffers.positions,
            "attention_mask": buffers.mask,
            "logits": buffers.logits,
        }
        for tensor in (*engine.record.inputs, *engine.record.outputs):
            if tensor.role in places:
                context.set_address(tensor.name, places[tensor.role])
        for state in buffers.states:
            context.set_address(state.record.input, state.pair[front])
            context.set_address(state.record.output, state.pair[front ^ 1])
        for cache in buffers.caches:
            context.set_address(cache.record.input, cache.rows)
            context.set_address(cache.record.output, cache.staging)
        self._set_shapes(context, engine.record, rows)

    def _set_shapes(self, context: PlanContext, engine: EngineRecord, rows: int) -> None:
        for tensor in engine.inputs:
            if any(isinstance(extent, str) for extent in tensor.shape):
                context.set_shape(tensor.name, run_shape(tensor.shape, rows, self._capacity_rows))

    def _place_rows(self, cache: RowCache, rows: int) -> None:
        target = cache.rows + self._position % self._capacity_rows * cache.row_bytes
        self._device.copy(target, cache.staging, rows * cache.row_bytes)

    def _drain(self) -> None:
        """Let the stream come to rest, so that nothing still writes into memory that is used again."""
        with contextlib.suppress(DeviceError):  # the first error is the one to tell
            self._device.synchronize()

    def _upload(self, address: int, array: Any) -> None:
        data = np.ascontiguousarray(array)
        self._device.upload(address, data.reshape(-1).view(np.uint8).data)
        self._device.synchronize()

    def _download(self, address: int, shape: tuple[int, ...], record: Any) -> Any:
        array = np.empty(shape, STORAGE_DTYPES[record.dtype])
        if array.nbytes:
            self._device.download(array.reshape(-1).view(np.uint8).data, address)
            self._device.synchronize()
        return array
