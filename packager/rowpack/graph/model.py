"""From a graphsurgeon graph to a serialised ONNX model and back, with one opset and deterministic bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

OPSET = 20
"""Plain operators up to this opset: ONNX Runtime and TensorRT's parser both take all that we emit."""

IR_VERSION = 10

LATER_IR_VERSION = 11
"""For graphs with types or fused operators that need a later opset (E2M1, RMSNormalization: opset 23)."""

FUNCTION_DOMAIN = "rowpack"
"""Domain of the mixers' ONNX functions."""

FUNCTION_DOMAIN_VERSION = 1

# graphsurgeon prints a warning for each bfloat16 tensor (NumPy has no such type); the tensors are kept as they are.
G_LOGGER.severity = G_LOGGER.ERROR


def new_graph(name: str, doc: str = "") -> gs.Graph:
    """Return an empty graph of the project's opset."""
    graph = gs.Graph(opset=OPSET, name=name, doc_string=doc)
    graph.producer_name = "rowpack"
    return graph


def export_model(graph: gs.Graph, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    """Return ``graph`` as an ONNX model that carries ``functions`` (none for a surgically changed graph)."""
    opset = max(graph.opset, OPSET)
    domains = [onnx.helper.make_opsetid("", opset)]
    if functions:
        domains.append(onnx.helper.make_opsetid(FUNCTION_DOMAIN, FUNCTION_DOMAIN_VERSION))
    own = sorted({str(node.domain) for node in all_nodes(graph) if node.domain not in (None, "", FUNCTION_DOMAIN)})
    domains += [onnx.helper.make_opsetid(domain, 1) for domain in own]
    graph.import_domains = domains
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    model.ir_version = IR_VERSION if opset == OPSET else LATER_IR_VERSION
    model.producer_name = "rowpack"
    model.producer_version = ""
    del model.functions[:]
    model.functions.extend(functions)
    _share_constants(model.graph)
    use_opset(model, opset)
    return model


def all_nodes(graph: gs.Graph) -> Iterator[Any]:
    """Yield the nodes of ``graph`` and of every graph inside its nodes."""
    for node in graph.nodes:
        yield node
        for inner in node.subgraphs():
            yield from all_nodes(inner)


def _share_constants(main: onnx.GraphProto) -> None:
    """Move the constants of inner graphs to ``main``, each once.

    graphsurgeon repeats a constant in every graph that reads it. The names are the model's, so graphs inside read the
    outer one, and weights outside the file are referred to by the main graph only.
    """
    known = {tensor.name for tensor in main.initializer}
    for inner in [inner for node in all_onnx_nodes(main) for inner in inner_graphs(node)]:
        for tensor in inner.initializer:
            if tensor.name not in known:
                known.add(tensor.name)
                main.initializer.append(tensor)
        del inner.initializer[:], inner.value_info[:]


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in the attributes of ``node``."""
    return [
        inner
        for attribute in node.attribute
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]


def all_onnx_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of ``graph`` and of every graph inside its nodes."""
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from all_onnx_nodes(inner)


def names_read(node: onnx.NodeProto) -> set[str]:
    """Return the names that ``node`` and the graphs inside it read."""
    return {name for inner in inner_graphs(node) for deeper in inner.node for name in names_read(deeper)} | set(
        node.input
    )


def use_opset(model: onnx.ModelProto, opset: int) -> None:
    """Declare ``opset`` for the main graph and all functions, which must have one and the same."""
    for entries in (model.opset_import, *(function.opset_import for function in model.functions)):
        for entry in entries:
            if entry.domain == "":
                entry.version = opset


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset of the standard operators that ``model`` declares."""
    return next(int(entry.version) for entry in model.opset_import if entry.domain == "")


def import_graph(model: onnx.ModelProto) -> gs.Graph:
    """Return ``model``'s main graph for surgery; local functions stay behind as calls."""
    return gs.import_onnx(model)


def serialize(model: onnx.ModelProto) -> bytes:
    """Return the model's bytes; the same model always gives the same bytes."""
    return bytes(model.SerializeToString(deterministic=True))
