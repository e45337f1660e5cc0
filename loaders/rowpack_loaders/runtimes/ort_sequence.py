"""Run one sequence on ONNX Runtime sessions, with every buffer bound ahead of time.

Rebinding all of 50 + 50 tensors costs more than many a step computes, so each engine has two prepared
bindings: front buffers in, back buffers out, and the reverse (and as many without the logits, once a prompt has
a chunk that others follow). Per step only what changes is bound: the
filled prefix of each cache as an input, and the rows behind it as the output, which the engine then writes
in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rowpack_loaders.buffers import SequenceBuffers, SequenceSnapshot
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.runtimes.denormals import FlushedDenormals
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray

onnxruntime = import_onnxruntime()

MASKED = -1e4
_CPU = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
# Numbers of onnx.TensorProto.DataType.
_ELEMENT_TYPES = {"float32": 1, "int32": 6, "float16": 10, "bfloat16": 16}


class OrtSequence:
    """One sequence: its buffers, bound to the decode engine and to the prefill engine if there is one."""

    def __init__(
        self,
        buffers: SequenceBuffers,
        decode: tuple[EngineRecord, Any],
        prefill: tuple[EngineRecord, Any] | None,
    ) -> None:
        self.buffers = buffers
        self._logits = np.empty((1, buffers.model.vocab_size), dtype=np.float32)
        self._decode = BoundEngine(*decode, buffers, self._logits, max_rows=1)
        self._prefill = (
            None
            if prefill is None
            else BoundEngine(*prefill, buffers, self._logits, max_rows=buffers.model.limits.prefill_rows)
        )

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
        """Run a chunk that others follow; the product with the whole vocabulary is left out."""
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


class _CacheBinding(NamedTuple):
    """What binding a cache's filled and new rows needs, worked out once."""

    input: str
    output: str
    element_type: int
    address: int
    row_bytes: int
    width: int


class BoundEngine:
    """One engine over one sequence's buffers.

    ``token_ids`` is filled by the caller before :meth:`run`; positions and the attention mask follow from the
    buffers, and only an engine that has such inputs gets them.
    """

    def __init__(
        self,
        engine: EngineRecord,
        session: Any,
        buffers: SequenceBuffers,
        logits: FloatArray,
        *,
        max_rows: int,
    ) -> None:
        self._session = session
        self._buffers = buffers
        self._names = {tensor.role: tensor.name for tensor in engine.inputs if tensor.role != "state"}
        self.token_ids = np.zeros(max_rows, dtype=np.int32)
        self._positions = np.zeros(max_rows, dtype=np.int32)
        self._row_offsets = np.arange(max_rows, dtype=np.int32)
        self._later_rows = np.triu(np.full((max_rows, max_rows), MASKED, dtype=np.float32), k=1)
        self._open_mask = np.zeros(buffers.capacity_rows + 1 if "attention_mask" in self._names else 0, np.float32)
        self._chunk_mask = self._later_rows
        self._engine = engine
        self._logits = logits
        # A binding without the logits, with the options that leave out what only they need.
        self._states_only = onnxruntime.RunOptions()
        self._states_only.only_execute_path_to_fetches = True
        self._bindings: dict[tuple[int, bool], Any] = {}
        self._bound_rows: dict[tuple[int, bool], int] = {}
        self._caches = [
            _CacheBinding(
                input=cache.record.input,
                output=cache.record.output,
                element_type=_ELEMENT_TYPES[cache.record.dtype],
                address=cache.rows.ctypes.data,
                row_bytes=cache.rows.strides[0],
                width=cache.record.shape[1],
            )
            for cache in buffers.caches
        ]
        self._fixed_rows = _fixed_rows(engine, buffers)
        for front in (0, 1):
            self._bindings[front, True] = self._bind(front, True)

    def run(self, rows: int, *, wants_logits: bool = True) -> None:
        """Run ``rows`` rows from the front buffers into the back buffers and the cache rows; then swap."""
        buffers = self._buffers
        key = (buffers.front, wants_logits)
        if key not in self._bindings:
            self._bindings[key] = self._bind(*key)
        binding = self._bindings[key]
        raw = binding._iobinding
        if self._bound_rows.get(key) != rows:
            self._bind_rows(raw, rows)
            self._bound_rows[key] = rows
        np.add(self._row_offsets[:rows], np.int32(buffers.position), out=self._positions[:rows])
        if self._caches:
            self._bind_cache_rows(raw, rows)
        with FlushedDenormals():
            self._session.run_with_iobinding(binding, None if wants_logits else self._states_only)
        buffers.advance(rows)

    def _bind(self, front: int, wants_logits: bool) -> Any:
        binding = self._session.io_binding()
        raw = binding._iobinding
        for state in self._buffers.fixed:
            record = state.record
            element_type = _ELEMENT_TYPES[record.dtype]
            source, target = state.pair[front], state.pair[front ^ 1]
            raw.bind_input(record.input, _CPU, element_type, source.shape, source.ctypes.data)
            raw.bind_output(record.output, _CPU, element_type, target.shape, target.ctypes.data)
        if wants_logits:
            (name,) = (tensor.name for tensor in self._engine.outputs if tensor.role == "logits")
            raw.bind_output(name, _CPU, _ELEMENT_TYPES["float32"], self._logits.shape, self._logits.ctypes.data)
        return binding

    def _bind_rows(self, raw: Any, rows: int) -> None:
        for role, array in (("token_id", self.token_ids), ("position_id", self._positions)):
            if role in self._names:
                raw.bind_input(self._names[role], _CPU, _ELEMENT_TYPES["int32"], (rows,), array.ctypes.data)

    def _bind_cache_rows(self, raw: Any, rows: int) -> None:
        # The methods of the wrapped binding are called directly, and with lists: the public wrapper looks the
        # device up anew on each call, which costs three times the binding itself (5 µs against 1.2 µs a tensor).
        filled, start = self._buffers.cache_rows, self._buffers.cache_start
        read_rows = filled if self._fixed_rows is None else self._fixed_rows
        if "attention_mask" in self._names:
            self._bind_mask(raw, rows, filled, read_rows)
        bind_input, bind_output = raw.bind_input, raw.bind_output
        for input_name, output_name, element_type, address, row_bytes, width in self._caches:
            first = address + start * row_bytes
            bind_input(input_name, _CPU, element_type, [read_rows, width], first)
            bind_output(output_name, _CPU, element_type, [rows, width], first + filled * row_bytes)

    def _bind_mask(self, raw: Any, rows: int, filled: int, read_rows: int) -> None:
        # Row t sees every filled cache row and the new rows up to itself; a single row sees every filled one.
        mask: FloatArray = self._open_mask
        if rows > 1 or read_rows > filled:
            mask = np.zeros((rows, read_rows + rows), dtype=np.float32)
            mask[:, filled:read_rows] = MASKED
            mask[:, read_rows:] = self._later_rows[:rows, :rows]
            self._chunk_mask = mask  # bound by address: it has to outlive the run
        shape = [rows, read_rows + rows]
        raw.bind_input(self._names["attention_mask"], _CPU, _ELEMENT_TYPES["float32"], shape, mask.ctypes.data)


def _fixed_rows(engine: EngineRecord, buffers: SequenceBuffers) -> int | None:
    """Return the cache rows that an engine of one size reads in every call, its mask hiding the unfilled ones;
    None for an engine that takes the filled rows.
    """
    sizes = [engine.input(cache.record.input).shape[0] for cache in buffers.caches]
    return next((size for size in sizes if isinstance(size, int)), None)
