"""Fix the number of rows in the declared shapes of inputs and outputs."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.surgery.surgery_pass import surgery_error

ROWS = "rows"
CACHE_ROWS = "cache_rows"


class FixRowCount:
    """Declare ``rows`` as a number in every shape (``cache_rows+rows`` becomes ``cache_rows+1``)."""

    name = "fix the row count"

    def __init__(self, rows: int) -> None:
        self._rows = str(rows)

    def check_before(self, graph: gs.Graph) -> None:
        """The model must still have a free row count."""
        if not any(ROWS in summands(extent) for tensor in graph.inputs for extent in tensor.shape):
            raise surgery_error(
                self.name,
                "no input has a free row count",
                where=str(graph.name),
                found=", ".join(f"{tensor.name} {tensor.shape}" for tensor in graph.inputs),
                expected=f"a dimension called {ROWS}",
            )

    def apply(self, graph: gs.Graph) -> None:
        """Rewrite the declared shapes of all tensors."""
        for tensor in graph.tensors().values():
            if isinstance(tensor, gs.Variable) and tensor.shape is not None:
                tensor.shape = [self._fixed(extent) for extent in tensor.shape]

    def check_after(self, graph: gs.Graph) -> None:
        """No input or output may still have a free row count."""
        for tensor in (*graph.inputs, *graph.outputs):
            if any(ROWS in summands(extent) for extent in tensor.shape):
                raise surgery_error(
                    self.name,
                    "a shape still has a free row count",
                    where=tensor.name,
                    found=str(tensor.shape),
                    expected="a number",
                )

    def _fixed(self, extent: int | str) -> int | str:
        if ROWS not in summands(extent):
            return extent
        text = "+".join(self._rows if word == ROWS else word for word in summands(extent))
        return int(text) if text.isdigit() else text


def summands(extent: Any) -> list[str]:
    """Return the parts of an extent: ``cache_rows+rows`` has two, a number or a single name one."""
    return str(extent).split("+")
