"""Compute logits, and what only they need, in a branch of their own: a chunk that others follow has no use for them.

The head alone reads a third of a small model's weights, once a chunk. ONNX Runtime runs every node of a graph whatever
outputs are asked for (``only_execute_path_to_fetches`` does nothing in the builds that are published), so the nodes
that lead to the logits and nowhere else are moved into an ``If``, whose condition is an input of its own. What is
stored stays as every loader knows it.
"""

from __future__ import annotations

from rowpack_loaders.onnx_encoding import graph, graph_attribute, node, tensor, tensor_attribute
from rowpack_loaders.onnx_graph_index import (
    Changes,
    GraphIndex,
    GraphNode,
)
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO, value_info
from rowpack_loaders.protobuf_wire import encoded_field
from rowpack_loaders.runtimes.host_sequence import WANTS_LOGITS

_COMPUTED = "rowpack.computed_logits"
_FLOAT = 1
_BOOL = 9


def logits_branch(index: GraphIndex, logits: str, vocab_size: int) -> Changes:
    """Return what moves all that only ``logits [1, vocab_size]`` needs into a branch; nothing where that cannot be.

    The input that is added, :data:`WANTS_LOGITS`, is a truth value without dimensions. Nothing is moved in a graph that
    says something else of its logits than the manifest does, or has the added names.
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
        for each in nodes
        for name in each.outputs
        for found in index.declarations(name)
        if found.field == GRAPH_VALUE_INFO
    ]
    changes: Changes = dict.fromkeys((*types, *(each.place for each in nodes)), b"")
    content = [index.bytes_at(each.place) for each in nodes[:-1]]
    content.append(index.with_output(index.bytes_at(last.place), last.outputs.index(logits), _COMPUTED))
    content += (index.bytes_at(place) for place in types)
    computed = encoded_field(GRAPH_OUTPUT, value_info(_COMPUTED, _FLOAT, (1, vocab_size)))
    then = graph("logits", [*content, computed])
    changes[last.place] = _if_node(logits, then, _no_logits(vocab_size))
    condition = encoded_field(GRAPH_INPUT, value_info(WANTS_LOGITS, _BOOL, ()))
    changes[declared[0].place] = condition + wanted
    return changes


def _nodes_only_for(index: GraphIndex, logits: str, maker: GraphNode) -> list[GraphNode]:
    """Return the nodes whose results lead to ``logits`` and nowhere else, in the graph's order; ``maker`` is one."""
    found: dict[tuple[int, int], GraphNode] = {}
    waiting = [maker]
    while waiting:
        each = waiting.pop()
        if each.place in found or not all(name == logits or _is_read_by(index, name, found) for name in each.outputs):
            continue
        found[each.place] = each
        # A node that also leads elsewhere is looked at again with each of its readers that is found.
        waiting += (made_by for name in each.inputs for made_by in index.makers(name))
    return [found[place] for place in sorted(found)]


def _is_read_by(index: GraphIndex, name: str, nodes: dict[tuple[int, int], GraphNode]) -> bool:
    """Tell whether ``name`` is read by ``nodes`` alone, and is no output of the graph; an omitted one is."""
    if not name:
        return True
    is_given_out = any(found.field != GRAPH_VALUE_INFO for found in index.declarations(name))
    return not is_given_out and all(reader.place in nodes for reader in index.readers(name))


def _if_node(output: str, then: bytes, otherwise: bytes) -> bytes:
    branches = (graph_attribute("then_branch", then), graph_attribute("else_branch", otherwise))
    return node("If", [WANTS_LOGITS], [output], *branches)


def _no_logits(vocab_size: int) -> bytes:
    """Return a graph that gives logits of no row."""
    name = f"{_COMPUTED}.none"
    constant = node("Constant", [], [name], tensor_attribute("value", tensor(_FLOAT, (0, vocab_size))))
    return graph("no_logits", [constant, encoded_field(GRAPH_OUTPUT, value_info(name, _FLOAT, (0, vocab_size)))])
