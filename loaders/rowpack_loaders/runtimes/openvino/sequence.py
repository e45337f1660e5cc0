"""Run one sequence on compiled models, with states bound ahead of time.

Each engine has two infer requests, used in turn: front buffers in and back buffers out, and the reverse. Per step only
what changes is bound: the filled prefix of each cache as an input, and the rows behind it as the output, which the
engine writes in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowpack_loaders.buffers import Array, SequenceBuffers
from rowpack_loaders.manifest import EngineRecord
from rowpack_loaders.runtimes.denormals import FlushedDenormals
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS, RowInputs
from rowpack_loaders.runtimes.openvino.library import import_openvino

if TYPE_CHECKING:
    from rowpack_loaders.runtimes import FloatArray, IntArray

openvino = import_openvino()

ELEMENT_TYPES = {
    "float32": openvino.Type.f32,
    "float16": openvino.Type.f16,
    "bfloat16": openvino.Type.bf16,
    "int32": openvino.Type.i32,
}

_ASKED = {wants_logits: openvino.Tensor(np.array([wants_logits])) for wants_logits in (True, False)}


class OpenVinoBoundEngine:
    """One engine over one sequence's buffers.

    ``token_ids`` is filled by the caller before :meth:`run`; positions and the attention mask follow from the
    buffers, and only an engine that has such inputs gets them.
    """

    def __init__(
        self, engine: EngineRecord, loaded: Any, buffers: SequenceBuffers, logits: FloatArray, *, max_rows: int
    ) -> None:
        self._buffers = buffers
        self._inputs = RowInputs(engine, buffers, max_rows)
        self._mask: FloatArray | None = None  # a request keeps no array alive: it has to outlive the run
        self._logits_name = engine.logits
        self._can_be_asked = any(WANTS_LOGITS in tensor.get_names() for tensor in loaded.inputs)
        self._requests = [self._bound_request(loaded, front, logits) for front in (0, 1)]
        self._bound_rows = [0, 0]

    @property
    def token_ids(self) -> IntArray:
        """The engine's token ids, filled before a run."""
        return self._inputs.token_ids

    def run(self, rows: int, *, wants_logits: bool = True) -> None:
        """Run ``rows`` rows from the front buffers into the back buffers and the cache rows; then swap.

        Logits that nobody wants are zeros, or computed all the same where the graph has no branch for them.
        """
        buffers = self._buffers
        request = self._requests[buffers.front]
        if self._bound_rows[buffers.front] != rows:
            self._bind_rows(request, rows)
            self._bound_rows[buffers.front] = rows
        self._inputs.place(buffers.position, rows)
        if buffers.caches:
            self._bind_cache_rows(request, rows)
        if self._can_be_asked:
            request.set_tensor(WANTS_LOGITS, _ASKED[wants_logits])
        with FlushedDenormals():
            request.infer(share_outputs=True)
        buffers.advance(rows)

    def _bound_request(self, compiled: Any, front: int, logits: FloatArray) -> Any:
        request = compiled.create_infer_request()
        for state in self._buffers.fixed:
            record = state.record
            request.set_tensor(record.input, _tensor(state.pair[front], record.dtype))
            request.set_tensor(record.output, _tensor(state.pair[front ^ 1], record.dtype))
        request.set_tensor(self._logits_name, _tensor(logits, "float32"))
        return request

    def _bind_rows(self, request: Any, rows: int) -> None:
        inputs = self._inputs
        for role, array in (("token_id", inputs.token_ids), ("position_id", inputs.positions)):
            if role in inputs.names:
                request.set_tensor(inputs.names[role], _tensor(array[:rows], "int32"))

    def _bind_cache_rows(self, request: Any, rows: int) -> None:
        inputs = self._inputs
        filled, start = self._buffers.cache_rows, self._buffers.cache_start
        read_rows = filled if inputs.fixed_cache_rows is None else inputs.fixed_cache_rows
        if "attention_mask" in inputs.names:
            self._mask = inputs.mask(rows, filled, read_rows)
            request.set_tensor(inputs.names["attention_mask"], _tensor(self._mask, "float32"))
        end = start + filled
        for cache in self._buffers.caches:
            record = cache.record
            request.set_tensor(record.input, _tensor(cache.rows[start : start + read_rows], record.dtype))
            request.set_tensor(record.output, _tensor(cache.rows[end : end + rows], record.dtype))


def _tensor(array: Array, dtype: str) -> Any:
    """Return a tensor over a buffer, which has to outlive it."""
    if array.size == 0:
        return openvino.Tensor(ELEMENT_TYPES[dtype], list(array.shape))
    if dtype == "bfloat16":  # numpy has no such type: the buffer holds its bits
        return openvino.Tensor(array, list(array.shape), ELEMENT_TYPES[dtype])
    return openvino.Tensor(array, shared_memory=True)
