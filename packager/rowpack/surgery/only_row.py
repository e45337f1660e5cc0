"""Leave out the lookup of the last row where there is one row only."""

from __future__ import annotations

from typing import Any

import onnx_graphsurgeon as gs

from rowpack.surgery.surgery_pass import surgery_error


class TakeTheOnlyRow:
    """Let what reads the last of one row read the row itself."""

    name = "take the only row"

    def check_before(self, graph: gs.Graph) -> None:
        """Nothing is asked: a graph may have no such lookup."""

    def apply(self, graph: gs.Graph) -> None:
        """Rewire the readers; lookups that nobody reads any more are removed by the clean-up after all passes."""
        for node in graph.nodes:
            if not _looks_up_the_only_row(node):
                continue
            rows, row = node.inputs[0], node.outputs[0]
            for reader in list(row.outputs):
                reader.inputs = [rows if tensor is row else tensor for tensor in reader.inputs]

    def check_after(self, graph: gs.Graph) -> None:
        """No such lookup may still be read."""
        for node in graph.nodes:
            if _looks_up_the_only_row(node) and node.outputs[0].outputs:
                raise surgery_error(
                    self.name, "a lookup was missed", where=node.name, found="Gather", expected="the row itself"
                )


def _looks_up_the_only_row(node: Any) -> bool:
    """Tell whether ``node`` takes the last row of a tensor that is declared to have one."""
    if node.op != "Gather" or node.attrs.get("axis", 0) != 0 or not isinstance(node.inputs[1], gs.Constant):
        return False
    rows = node.inputs[0]
    return (
        not isinstance(rows, gs.Constant)
        and rows.shape is not None
        and rows.shape[0] == 1
        and node.inputs[1].values.tolist() == [-1]
    )
