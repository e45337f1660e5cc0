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

from rowpack_loaders.buffers import SequenceBuffers
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.runtimes.denormals import FlushedDenormals
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS, RowInputs
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_state_edges import StateEdges

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray

onnxruntime = import_onnxruntime()

_CPU = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
# Numbers of onnx.TensorProto.DataType.
_ELEMENT_TYPES = {"float32": 1, "int32": 6, "bool": 9, "float16": 10, "bfloat16": 16}


class _CacheBinding(NamedTuple):
    """What binding a cache's filled and new rows needs, worked out once."""

    input: str
    output: str
    element_type: int
    address: int
    row_bytes: int
    width: int


class LoadedEngine(NamedTuple):
    """An engine's session, and how its states are bound."""

    session: Any
    edges: StateEdges


class OrtBoundEngine:
    """One engine over one sequence's buffers.

    ``token_ids`` is filled by the caller before :meth:`run`; positions and the attention mask follow from the
    buffers, and only an engine that has such inputs gets them.
    """

    def __init__(
        self,
        engine: EngineRecord,
        loaded: LoadedEngine,
        buffers: SequenceBuffers,
        logits: FloatArray,
        *,
        max_rows: int,
    ) -> None:
        self._session = loaded.session
        self._edges = loaded.edges
        self._buffers = buffers
        self._inputs = RowInputs(engine, buffers, max_rows)
        self._mask: FloatArray | None = None
        self._engine = engine
        self._logits = logits
        # Bound by address; a graph that is not asked computes logits in every run.
        self._asked = {wants_logits: np.array(wants_logits) for wants_logits in (True, False)}
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
        for front in (0, 1):
            self._bindings[front, True] = self._bind(front, True)

    @property
    def token_ids(self) -> IntArray:
        """The engine's token ids, filled before a run."""
        return self._inputs.token_ids

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
        self._inputs.place(buffers.position, rows)
        if self._caches:
            self._bind_cache_rows(raw, rows)
        with FlushedDenormals():
            self._session.run_with_iobinding(binding)
        buffers.advance(rows)

    def _bind(self, front: int, wants_logits: bool) -> Any:
        binding = self._session.io_binding()
        raw = binding._iobinding
        for state in self._buffers.fixed:
            record = state.record
            element_type = _ELEMENT_TYPES[record.dtype]
            source, target = state.pair[front], state.pair[front ^ 1]
            edges = self._edges
            shape = edges.shapes.get(record.input, source.shape)
            into, out_of = (edges.names.get(name, name) for name in (record.input, record.output))
            raw.bind_input(into, _CPU, element_type, shape, source.ctypes.data)
            raw.bind_output(out_of, _CPU, element_type, shape, target.ctypes.data)
        if self._edges.asks_for_logits:
            raw.bind_input(WANTS_LOGITS, _CPU, _ELEMENT_TYPES["bool"], (), self._asked[wants_logits].ctypes.data)
        if wants_logits:
            address = self._logits.ctypes.data
            raw.bind_output(self._engine.logits, _CPU, _ELEMENT_TYPES["float32"], self._logits.shape, address)
        return binding

    def _bind_rows(self, raw: Any, rows: int) -> None:
        inputs = self._inputs
        for role, array in (("token_id", inputs.token_ids), ("position_id", inputs.positions)):
            if role in inputs.names:
                raw.bind_input(inputs.names[role], _CPU, _ELEMENT_TYPES["int32"], (rows,), array.ctypes.data)

    def _bind_cache_rows(self, raw: Any, rows: int) -> None:
        # The methods of the wrapped binding are called directly, and with lists: the public wrapper looks the
        # device up anew on each call, which costs three times the binding itself (5 µs against 1.2 µs a tensor).
        filled, start = self._buffers.cache_rows, self._buffers.cache_start
        inputs = self._inputs
        read_rows = filled if inputs.fixed_cache_rows is None else inputs.fixed_cache_rows
        if "attention_mask" in inputs.names:
            mask = inputs.mask(rows, filled, read_rows)
            self._mask = mask  # bound by address: it has to outlive the run
            name = inputs.names["attention_mask"]
            raw.bind_input(name, _CPU, _ELEMENT_TYPES["float32"], list(mask.shape), mask.ctypes.data)
        bind_input, bind_output = raw.bind_input, raw.bind_output
        for input_name, output_name, element_type, address, row_bytes, width in self._caches:
            first = address + start * row_bytes
            bind_input(input_name, _CPU, element_type, [read_rows, width], first)
            bind_output(output_name, _CPU, element_type, [rows, width], first + filled * row_bytes)
