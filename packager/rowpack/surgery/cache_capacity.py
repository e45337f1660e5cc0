"""Fix the number of cache rows in the declared shapes of inputs and outputs."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.surgery.surgery_pass import surgery_error

CACHE_ROWS = "cache_rows"
CAPACITY = "max_cache_length"
"""What stands for the fixed number beside another free dimension: the mask of a chunk is ``[rows, this + rows]``."""


class FixCacheRows:
    """Declare ``cache_rows`` as a number in every shape; ``cache_rows+1`` becomes one number.

    ``cache_rows+rows`` becomes ``max_cache_length+rows``: the row count of a chunk stays free. A graph without
    caches is left as it is.
    """

    name = "fix the cache rows"

    def __init__(self, capacity_rows: int) -> None:
        self._capacity_rows = capacity_rows

    def check_before(self, graph: gs.Graph) -> None:
        """No shape may name the fixed number already: the pass runs once."""
        self._refuse(graph, CAPACITY, "a shape has a fixed number of cache rows already", CACHE_ROWS)

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite the declared shapes of all tensors."""
        for tensor in graph.tensors().values():
            if isinstance(tensor, gs.Variable) and tensor.shape is not None:
                tensor.shape = [self._fixed(extent) for extent in tensor.shape]

    def check_after(self, graph: gs.Graph) -> None:
        """No input or output may still have a free number of cache rows."""
        self._refuse(graph, CACHE_ROWS, "a shape still has a free number of cache rows", "a number")

    def _refuse(self, graph: gs.Graph, word: str, message: str, expected: str) -> None:
        for tensor in (*graph.inputs, *graph.outputs):
            if any(word in _words(extent) for extent in tensor.shape):
                raise surgery_error(self.name, message, where=tensor.name, found=str(tensor.shape), expected=expected)

    def _fixed(self, extent: int | str) -> int | str:
        words = _words(extent)
        if CACHE_ROWS not in words:
            return extent
        numbers = [self._capacity_rows if word == CACHE_ROWS else int(word) for word in words if _counts(word)]
        names = [word for word in words if not _counts(word)]
        return "+".join([CAPACITY, *names]) if names else sum(numbers)


def _counts(word: str) -> bool:
    return word == CACHE_ROWS or word.isdigit()


def _words(extent: Any) -> list[str]:
    return str(extent).split("+")
