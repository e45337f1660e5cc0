"""Compute logits, and what only they need, in a branch of their own: a chunk that others follow has no use for them.

The head alone reads a third of a small model's weights, once a chunk. ONNX Runtime runs every node of a graph whatever
outputs are asked for (``only_execute_path_to_fetches`` does nothing in the builds that are published), so the nodes
that lead to the logits and nowhere else are moved into an ``If``, whose condition is an input of its own. What is
stored stays as every loader knows it.

Field numbers are those of ``onnx.proto``: NodeProto.input = 1, .output = 2, .name = 3, .op_type = 4, .attribute = 5;
AttributeProto.name = 1, .t = 5, .g = 6, .type = 20, where TENSOR is 4 and GRAPH 5; GraphProto.node = 1, .name = 2;
TensorProto.dims = 1, .data_type = 2.
"""

from __future__ import annotations

from rowpack_loaders.onnx_graph_index import (
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    GRAPH_VALUE_INFO,
    Changes,
    GraphIndex,
    GraphNode,
)
from rowpack_loaders.onnx_wire import value_info
from rowpack_loaders.protobuf_wire import encoded_field, encoded_integer

WANTS_LOGITS = "rowpack.wants_logits"
"""The added input: a truth value without dimensions."""

_COMPUTED = "rowpack.computed_logits"
_FLOAT = 1
_BOOL = 9
_TENSOR_ATTRIBUTE = 4
_GRAPH_ATTRIBUTE = 5


def logits_branch(index: GraphIndex, logits: str, vocab_size: int) -> Changes:
    """Return what moves all that only ``logits [1, vocab_size]`` needs into a branch; nothing where that cannot be.

    It cannot in a graph that says something else of its logits than the manifest does, or has the added names.
    Raises ``onnx_malformed``.
    """
    makers = index.makers(logits)
    declared = index.declarations(logits)
    wanted = encoded_field(GRAPH_OUTPUT, value_info(logits, _FLOAT, (1, vocab_size)))
    are_said = len(declared) == 1 and index.bytes_at(declared[0].place) == wanted
    is_taken = any(index.declarations(name) or index.makers(name) for name in (WANTS_LOGITS, _COMPUTED))
    if len(makers) != 1 or not are_said or is_taken or index.readers(logits):
        return {}
    nodes = _nodes_only_for(index, logits, makers[0])
    last = nodes[-1]
    if last.place != makers[0].place or last.outputs.count(logits) != 1:
        return {}
    types = [
        found.place
        for node in nodes
        for name in node.outputs
        for found in index.declarations(name)
        if found.field == GRAPH_VALUE_INFO
    ]
    changes: Changes = dict.fromkeys((*types, *(node.place for node in nodes)), b"")
    content = [index.bytes_at(node.place) for node in nodes[:-1]]
    content.append(index.with_output(index.bytes_at(last.place), last.outputs.index(logits), _COMPUTED))
    content += (index.bytes_at(place) for place in types)
    computed = encoded_field(GRAPH_OUTPUT, value_info(_COMPUTED, _FLOAT, (1, vocab_size)))
    then = _graph("logits", b"".join([*content, computed]))
    changes[last.place] = _if_node(logits, then, _no_logits(vocab_size))
    condition = encoded_field(GRAPH_INPUT, value_info(WANTS_LOGITS, _BOOL, ()))
    changes[declared[0].place] = condition + wanted
    return changes


def _nodes_only_for(index: GraphIndex, logits: str, maker: GraphNode) -> list[GraphNode]:
    """Return the nodes whose results lead to ``logits`` and nowhere else, in the graph's order; ``maker`` is one."""
    found: dict[tuple[int, int], GraphNode] = {}
    waiting = [maker]
    while waiting:
        node = waiting.pop()
        if node.place in found or not all(name == logits or _is_read_by(index, name, found) for name in node.outputs):
            continue
        found[node.place] = node
        # A node that also leads elsewhere is looked at again with each of its readers that is found.
        waiting += (made_by for name in node.inputs for made_by in index.makers(name))
    return [found[place] for place in sorted(found)]


def _is_read_by(index: GraphIndex, name: str, nodes: dict[tuple[int, int], GraphNode]) -> bool:
    """Tell whether ``name`` is read by ``nodes`` alone, and is no output of the graph; an omitted one is."""
    if not name:
        return True
    is_given_out = any(found.field != GRAPH_VALUE_INFO for found in index.declarations(name))
    return not is_given_out and all(reader.place in nodes for reader in index.readers(name))


def _if_node(output: str, then: bytes, otherwise: bytes) -> bytes:
    branches = (("then_branch", then), ("else_branch", otherwise))
    attributes = (_attribute(name, _GRAPH_ATTRIBUTE, encoded_field(6, graph)) for name, graph in branches)
    return _node("If", output, encoded_field(1, WANTS_LOGITS.encode()), *attributes)


def _no_logits(vocab_size: int) -> bytes:
    """Return a graph that gives logits of no row."""
    name = f"{_COMPUTED}.none"
    extents = encoded_integer(1, 0) + encoded_integer(1, vocab_size)
    tensor = encoded_field(5, extents + encoded_integer(2, _FLOAT))
    output = encoded_field(GRAPH_OUTPUT, value_info(name, _FLOAT, (0, vocab_size)))
    return _graph("no_logits", _node("Constant", name, _attribute("value", _TENSOR_ATTRIBUTE, tensor)) + output)


def _graph(name: str, content: bytes) -> bytes:
    return content + encoded_field(2, name.encode())


def _node(operator: str, output: str, *fields: bytes) -> bytes:
    named = encoded_field(2, output.encode()) + encoded_field(3, output.encode()) + encoded_field(4, operator.encode())
    return encoded_field(GRAPH_NODE, b"".join([*fields, named]))


def _attribute(name: str, kind: int, value: bytes) -> bytes:
    return encoded_field(5, encoded_field(1, name.encode()) + value + encoded_integer(20, kind))
