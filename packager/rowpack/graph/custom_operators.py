"""Name the operators of a model that are not ONNX's own: what a runtime must offer beyond the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

CONTRIBUTED_DOMAIN = "com.microsoft"
"""Domain of the operators that ONNX Runtime adds to the standard ones."""

_STANDARD_DOMAINS = ("", "ai.onnx")


def custom_operators(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return ``domain.Operator`` of every node beyond the standard and the model's own functions, sorted, each once.

    Nodes in functions and in subgraphs of attributes count as well.
    """
    own = {(function.domain, function.name) for function in model.functions}
    found: set[tuple[str, str]] = set()
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        if node.domain not in _STANDARD_DOMAINS:
            found.add((node.domain, node.op_type))
        for attribute in node.attribute:
            pending.extend(attribute.g.node)
            pending.extend(inner for graph in attribute.graphs for inner in graph.node)
    return tuple(sorted(f"{domain}.{operator}" for domain, operator in found - own))
