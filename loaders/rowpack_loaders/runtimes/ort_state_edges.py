"""Bind states as a graph's nodes take them, without the nodes between its edges and them.

The engines' states lie as the manifest says. ``LinearAttention`` wants a batch of one before them, and a convolution
works on rows where its state has columns. A reshape between a node and an output that a buffer is bound to copies the
state, a megabyte a layer, and a transpose takes as long as the rest of a row's convolution. So these reshapes and
transposes are taken off, and the buffers are bound in the operator's shape, or turned. What is stored stays as every
loader knows it. Field numbers are those of ``onnx.proto``: NodeProto.input = 1, .output = 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from rowpack_loaders.manifest import StateRecord, TensorRecord
from rowpack_loaders.onnx_graph_index import (
    Changes,
    Declaration,
    GraphIndex,
    GraphNode,
)
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO, MODEL_GRAPH, value_info
from rowpack_loaders.protobuf_wire import encoded_field, messages_among
from rowpack_loaders.runtimes.ort_logits_branch import logits_branch

OPERATOR = "LinearAttention"
DOMAIN = "com.microsoft"

_STATE_INPUT = 3
_STATE_OUTPUT = 1

_FLOAT = 1


class StateEdges(NamedTuple):
    """A graph without those nodes, and how states are bound to it: names and shapes by the manifest's names.

    ``asks_for_logits`` says that the graph has the input of :mod:`rowpack_loaders.runtimes.ort_logits_branch`.
    """

    model: bytes
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    asks_for_logits: bool = False

    def bound(self, tensors: Iterable[TensorRecord]) -> list[TensorRecord]:
        """Return the manifest's tensors as they are bound."""
        return [
            replace(
                tensor,
                name=self.names.get(tensor.name, tensor.name),
                shape=self.shapes.get(tensor.name, tensor.shape),
            )
            for tensor in tensors
        ]


class _Edge(NamedTuple):
    """What one state's nodes are changed for, and how it is bound then: (input, output), and the shape of both."""

    changes: Changes
    names: tuple[str, str]
    shape: tuple[int, ...]


class EngineEdges:
    """The edges of one graph that states go through, and what may be taken off there.

    A state whose way in or out is any other than those of this module stays as it is. Raises ``onnx_malformed``.
    """

    def __init__(self, model: bytes, states: Iterable[StateRecord], *, where: str) -> None:
        self._model = model
        self._where = where
        self._reshaped: dict[StateRecord, _Edge] = {}
        self._transposed: dict[StateRecord, _Edge] = {}
        self._graph = b""
        graphs = list(messages_among(memoryview(model), MODEL_GRAPH, where))
        if len(graphs) == 1:  # else the runtime says what is wrong with it
            ((graph, self._start, self._end),) = graphs
            self._graph = bytes(graph)
        self._index = GraphIndex(self._graph, where)
        for state in states:
            if state.dtype == "float32" and len(state.shape) in (2, 3):
                self._look_at(state)

    def looks_up(self, weight: str) -> bool:
        """Tell whether rows of ``weight`` are looked up, and nothing else in the graph reads it."""
        return all(reader.kind == ("", "Gather") for reader in self._index.readers(weight))

    @property
    def turnable(self) -> frozenset[str]:
        """The inputs of states that can be bound turned."""
        return frozenset(state.input for state in self._transposed)

    @property
    def read_and_written(self) -> frozenset[str]:
        """The inputs of states that one node reads, and no other, and that the same node writes."""
        return frozenset(state.input for state in self._reshaped)

    def taken_off(self, turned: Collection[str], *, logits: tuple[str, int] | None = None) -> StateEdges:
        """Return the graph without reshapes at its edges, and without the transposes of the states ``turned``.

        Where ``logits``, their name and the size of the vocabulary, are given, they are moved into a branch.
        """
        transposed = {state: edge for state, edge in self._transposed.items() if state.input in turned}
        edges = self._reshaped | transposed
        changes: Changes = {}
        names: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for state, edge in edges.items():
            changes |= edge.changes
            names |= zip((state.input, state.output), edge.names, strict=True)
            shapes |= dict.fromkeys((state.input, state.output), edge.shape)
        branch = {} if logits is None else logits_branch(self._index, *logits)
        if branch.keys() & changes.keys():
            branch = {}  # a node that is taken off leads to nothing but logits: it cannot be moved as it was
        changes |= branch
        if not changes:
            return StateEdges(self._model, names, shapes)
        changed = encoded_field(MODEL_GRAPH, self._index.changed(changes))
        return StateEdges(
            b"".join([self._model[: self._start], changed, self._model[self._end :]]),
            names,
            shapes,
            asks_for_logits=bool(branch),
        )

    def _look_at(self, state: StateRecord) -> None:
        """Note how a state that the graph declares just as the manifest does could be bound, if in another way.

        What does not agree stays, for the check of the engine's inputs and outputs to find.
        """
        index = self._index
        declared: list[Declaration] = []
        for number, name in ((GRAPH_INPUT, state.input), (GRAPH_OUTPUT, state.output)):
            said = index.declarations(name)
            wanted = encoded_field(number, value_info(name, _FLOAT, state.shape))
            if len(said) != 1 or self._graph[slice(*said[0].place)] != wanted:
                return
            declared += said
        # One node reads the state, none reads the next one, and one makes it.
        readers, makers = index.readers(state.input), index.makers(state.output)
        if len(readers) != 1 or len(makers) != 1 or index.readers(state.output):
            return
        (first,), (last,) = readers, makers
        if not first.outputs or not last.inputs or last.outputs[0] != state.output or first.inputs[0] != state.input:
            return
        edge = self._reshaped_edge(state, first, last) or self._transposed_edge(state, first, last)
        if edge is None:
            return
        changes = {**edge.changes, first.place: b"", last.place: b""}
        for name in (first.outputs[0], last.inputs[0]):
            changes |= {found.place: b"" for found in index.declarations(name)}
        for found, name in zip(declared, edge.names, strict=True):
            changes[found.place] = encoded_field(found.field, value_info(name, _FLOAT, edge.shape))
        kept = self._reshaped if len(state.shape) == 3 else self._transposed
        kept[state] = _Edge(changes, edge.names, edge.shape)

    def _reshaped_edge(self, state: StateRecord, first: GraphNode, last: GraphNode) -> _Edge | None:
        """Return what takes the reshapes around the operator off a state of three dimensions."""
        if len(state.shape) != 3 or {first.kind, last.kind} != {("", "Reshape")}:
            return None
        readers, beside = self._index.readers(first.outputs[0]), self._index.readers(last.inputs[0])
        node = readers[0] if len(readers) == 1 else None
        if node is None or node.kind != (DOMAIN, OPERATOR) or beside != [last]:
            return None
        is_taken_over = (
            not self._is_given_out(first.outputs[0], last.inputs[0])
            and len(node.inputs) > _STATE_INPUT
            and len(node.outputs) > _STATE_OUTPUT
            and node.inputs[_STATE_INPUT] == first.outputs[0]
            and node.outputs[_STATE_OUTPUT] == last.inputs[0]
        )
        if not is_taken_over:
            return None
        index = self._index
        taking_over = index.with_input(index.bytes_at(node.place), _STATE_INPUT, state.input)
        taking_over = index.with_output(taking_over, _STATE_OUTPUT, state.output)
        return _Edge({node.place: taking_over}, (state.input, state.output), (1, *state.shape))

    def _transposed_edge(self, state: StateRecord, first: GraphNode, last: GraphNode) -> _Edge | None:
        """Return how what is between two transposes becomes the edge of a state of two dimensions."""
        turns = {(node.kind, node.axes in ((), (1, 0))) for node in (first, last)}
        if len(state.shape) != 2 or turns != {(("", "Transpose"), True)}:
            return None
        inner = (first.outputs[0], last.inputs[0])
        is_shared = any(inner[1] == edge.names[1] for edge in self._transposed.values())
        if inner[0] == inner[1] or is_shared or self._is_given_out(*inner):
            return None
        return _Edge({}, inner, (state.shape[1], state.shape[0]))

    def _is_given_out(self, *names: str) -> bool:
        """Tell whether a name is an input or an output of the graph, and no mere result."""
        return any(each.field != GRAPH_VALUE_INFO for name in names for each in self._index.declarations(name))
