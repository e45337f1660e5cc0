"""Make attention blind to what unfilled cache rows hold, for engines that always read the whole cache.

The mask alone is not enough: −1e4 added to NaN is NaN, and a weight of exactly zero times infinity is NaN as well.
So the rows are replaced by zeros before they are used. Which rows are filled is read from the mask's first row:
every row of a chunk sees the same cache rows, and the mask is right for a sliding cache too, where the position no
longer counts rows. The engine may then write its new rows into the very cache it reads: they are unfilled rows.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from rowpack.graph.emitter import Emitter, Tensor, declared_dtype
from rowpack.onnx_ops import CACHED_ATTENTION
from rowpack.surgery.surgery_pass import function_calls, surgery_error

MASK_THRESHOLD = -5e3
"""Half of the mask's −1e4: above it a column is seen."""

_CACHE_KEY, _CACHE_VALUE, _MASK = 3, 4, 5


class IgnoreUnfilledCacheRows:
    """Replace masked rows of both caches of every ``CachedAttention`` call by zeros; runs before its lowering."""

    name = "ignore unfilled cache rows"

    def __init__(self, capacity_rows: int) -> None:
        self._capacity_rows = capacity_rows

    def check_before(self, graph: gs.Graph) -> None:
        """Both caches and the mask of a call must be inputs of the model."""
        names = {tensor.name for tensor in graph.inputs}
        for call in function_calls(graph, CACHED_ATTENTION):
            for tensor in call.inputs[_CACHE_KEY : _MASK + 1]:
                if tensor.name not in names:
                    raise surgery_error(
                        self.name,
                        "a cache or mask is not an input of the model",
                        where=call.name,
                        found=tensor.name,
                        expected="cache_k, cache_v and attention_mask as they enter",
                    )

    def apply(self, graph: gs.Graph) -> None:
        """Emit one condition for the whole graph and one selection a cache."""
        emitter = Emitter(graph)
        conditions: dict[str, Tensor] = {}
        for call in function_calls(graph, CACHED_ATTENTION):
            mask = call.inputs[_MASK]
            if mask.name not in conditions:
                conditions[mask.name] = self._filled(emitter.at_root(mask.name), mask)
            for index in (_CACHE_KEY, _CACHE_VALUE):
                cache = call.inputs[index]
                dtype = declared_dtype(cache)
                scope = emitter.at_root(cache.name)
                zero = emitter.floats("zero", 0.0, scalar=True)
                zero = scope.cast_if_needed(zero, "float32", dtype, "zero")
                call.inputs[index] = scope.op(
                    "Where",
                    [conditions[mask.name], cache, zero],
                    "filled_rows",
                    dtype=dtype,
                    shape=cache.shape,
                )

    def check_after(self, graph: gs.Graph) -> None:
        """No call may read a cache as it enters."""
        for call in function_calls(graph, CACHED_ATTENTION):
            for tensor in call.inputs[_CACHE_KEY : _CACHE_VALUE + 1]:
                if not tensor.inputs or tensor.inputs[0].op != "Where":
                    raise surgery_error(
                        self.name,
                        "a call reads unfilled rows",
                        where=call.name,
                        found=tensor.name,
                        expected="the filled rows only",
                    )

    def _filled(self, emitter: Emitter, mask: Tensor) -> Tensor:
        """Emit bool ``[capacity, 1]``: whether a cache row is filled."""
        first = emitter.op(
            "Slice",
            [mask, emitter.ints(0, 0), emitter.ints(1, self._capacity_rows), emitter.ints(0, 1)],
            "of_cache",
        )
        seen = emitter.op("Greater", [first, emitter.floats("mask_threshold", MASK_THRESHOLD, scalar=True)], "seen")
        return emitter.reshape(seen, [self._capacity_rows, 1], "filled")
