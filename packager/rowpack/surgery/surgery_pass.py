"""What a surgery pass is: a change of the graph with stated and checked conditions before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import onnx_graphsurgeon as gs

from rowpack.graph.model import FUNCTION_DOMAIN, all_nodes
from rowpack.surgery.execution_order import order_for_execution
from rowpack.surgery.float4_form import DYNAMIC_QUANTIZE, TENSORRT_DOMAIN
from rowpack_loaders.errors import RowpackError


class SurgeryPass(Protocol):
    """One change of a graph; each method raises :func:`surgery_error` when its condition does not hold."""

    @property
    def name(self) -> str:
        """Name of the pass, for messages."""
        ...

    def check_before(self, graph: gs.Graph) -> None:
        """Check what must hold before."""
        ...

    def apply(self, graph: gs.Graph) -> None:
        """Change the graph in place."""
        ...

    def check_after(self, graph: gs.Graph) -> None:
        """Check what must hold afterwards."""
        ...


def surgery_error(name: str, message: str, *, where: str, found: str, expected: str) -> RowpackError:
    """Return the error of a pass whose condition failed; it is a fault of rowpack or of a foreign graph."""
    return RowpackError(
        "surgery_condition",
        f"the surgery pass {name!r} cannot go on: {message}",
        where=where,
        found=found,
        expected=expected,
        remedy="The graph was not exported by this version of rowpack, or rowpack has a fault: please report it.",
    )


def run_passes(graph: gs.Graph, passes: Sequence[SurgeryPass]) -> None:
    """Run ``passes`` in order; the graph's inputs and outputs keep their names and element types throughout."""
    for surgery_pass in passes:
        before = _signature(graph)
        surgery_pass.check_before(graph)
        surgery_pass.apply(graph)
        surgery_pass.check_after(graph)
        if _signature(graph) != before:
            raise surgery_error(
                surgery_pass.name,
                "it changed the model's inputs or outputs",
                where=str(graph.name),
                found=str(_signature(graph)),
                expected=str(before),
            )
    order_for_execution(graph.cleanup(remove_unused_node_outputs=False))


def check_plain(graph: gs.Graph, fused: Sequence[str] = ()) -> None:
    """Check that only plain operators are left: no function call, no custom domain, no Loop, Scan or If.

    ``fused`` names the operators (``domain.Operator``) that the graph may use besides. Rows are rounded to E2M1 by an
    operator of TensorRT's own, for which there is no other. Graphs inside nodes are looked into as well.
    """
    names = [
        f"{node.domain or 'ai.onnx'}.{node.op}"
        for node in all_nodes(graph)
        if (node.domain or node.op in ("Loop", "Scan", "If"))
        and (node.domain, node.op) != (TENSORRT_DOMAIN, DYNAMIC_QUANTIZE)
    ]
    refused = Counter(name for name in names if name not in fused)
    if refused:
        raise surgery_error(
            "plain operators",
            "operators are left that not every runtime takes",
            where=str(graph.name),
            found=", ".join(f"{count} × {name}" for name, count in sorted(refused.items())),
            expected="plain ONNX operators only",
        )


def function_calls(graph: gs.Graph, function: str) -> list[Any]:
    """Return the call nodes of the ONNX function ``function`` in graph order."""
    return [node for node in graph.nodes if node.domain == FUNCTION_DOMAIN and node.op == function]


def _signature(graph: gs.Graph) -> tuple[tuple[str, str], ...]:
    return tuple((tensor.name, str(tensor.dtype)) for tensor in (*graph.inputs, *graph.outputs))
