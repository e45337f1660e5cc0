"""Bind states as a graph's nodes take them, without the nodes between its edges and them.

The engines' states lie as the manifest says. ``LinearAttention`` wants a batch of one before them, and a convolution
works on rows where its state has columns. A reshape between a node and an output that a buffer is bound to copies the
state, a megabyte a layer, and a transpose takes as long as the rest of a row's convolution. So these reshapes and
transposes are taken off, and the buffers are bound in the operator's shape, or turned. What is stored stays as every
loader knows it. Field numbers are those of ``onnx.proto``: GraphProto.node = 1, .input = 11, .output = 12,
.value_info = 13; NodeProto.input = 1, .output = 2, .op_type = 4, .attribute = 5, .domain = 7; AttributeProto.ints = 8.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from rowpack_loaders.manifest import StateRecord, TensorRecord
from rowpack_loaders.onnx_wire import MODEL_GRAPH, value_info
from rowpack_loaders.protobuf_wire import Message, encoded_field, fields, messages_among

OPERATOR = "LinearAttention"
DOMAIN = "com.microsoft"

_STATE_INPUT = 3
_STATE_OUTPUT = 1

_GRAPH_NODE = 1
_GRAPH_INPUT = 11
_GRAPH_OUTPUT = 12
_GRAPH_VALUE_INFO = 13
_FLOAT = 1


Changes = dict[tuple[int, int], bytes]
"""What takes the place of ``graph[start:end]``."""


@dataclass(frozen=True)
class StateEdges:
    """A graph without those nodes, and how states are bound to it: names and shapes by the manifest's names.

    ``read_and_written`` are the inputs of states that one node reads, and no other, and that the same node writes;
    ``turned`` those of states that are bound turned.
    """

    model: bytes
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    read_and_written: frozenset[str]
    turned: frozenset[str]

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


@dataclass(frozen=True)
class _Field:
    """A field of the graph: its number, its place, and where its content begins."""

    number: int
    place: tuple[int, int]
    content: int


@dataclass(frozen=True)
class _Node:
    place: tuple[int, int]
    kind: tuple[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class _Edge:
    """What one state's nodes are changed for, and how it is bound then: (input, output), and the shape of both."""

    changes: Changes
    names: tuple[str, str]
    shape: tuple[int, ...]


class EngineEdges:
    """The edges of one graph that states go through, and what may be taken off there.

    A state whose way in or out is any other than those of this module stays as it is. Nodes are found by the names
    that they read and make, since a graph has thousands and few are looked for. Raises ``onnx_malformed``.
    """

    def __init__(self, model: bytes, states: Iterable[StateRecord], *, where: str) -> None:
        self._model = model
        self._where = where
        self._reshaped: dict[StateRecord, _Edge] = {}
        self._transposed: dict[StateRecord, _Edge] = {}
        self._held: dict[bytes, list[_Field]] = {}
        graphs = list(messages_among(memoryview(model), MODEL_GRAPH, where))
        if len(graphs) != 1:
            return  # the runtime says what is wrong with it
        ((graph, self._start, self._end),) = graphs
        self._graph = bytes(graph)
        self._fields = [
            _Field(number, (start, end), end - len(value))
            for number, value, start, end in fields(graph, where)
            if not isinstance(value, int)
        ]
        self._starts = [field.place[0] for field in self._fields]
        for state in states:
            if state.dtype == "float32" and len(state.shape) in (2, 3):
                self._look_at(state)

    @property
    def turnable(self) -> frozenset[str]:
        """The inputs of states that can be bound turned."""
        return frozenset(state.input for state in self._transposed)

    def taken_off(self, turned: Collection[str]) -> StateEdges:
        """Return the graph without reshapes at its edges, and without the transposes of the states ``turned``."""
        transposed = {state: edge for state, edge in self._transposed.items() if state.input in turned}
        edges = self._reshaped | transposed
        if not edges:
            return StateEdges(self._model, {}, {}, frozenset(), frozenset())
        changes: Changes = {}
        names: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for state, edge in edges.items():
            changes |= edge.changes
            names |= zip((state.input, state.output), edge.names, strict=True)
            shapes |= dict.fromkeys((state.input, state.output), edge.shape)
        changed = encoded_field(MODEL_GRAPH, _with_changes(memoryview(self._graph), changes))
        return StateEdges(
            b"".join([self._model[: self._start], changed, self._model[self._end :]]),
            names,
            shapes,
            frozenset(state.input for state in self._reshaped),
            frozenset(state.input for state in transposed),
        )

    def _look_at(self, state: StateRecord) -> None:
        """Note how a state that the graph declares just as the manifest does could be bound, if in another way.

        What does not agree stays, for the check of the engine's inputs and outputs to find.
        """
        declared: list[_Field] = []
        for number, name in ((_GRAPH_INPUT, state.input), (_GRAPH_OUTPUT, state.output)):
            wanted = encoded_field(number, value_info(name, _FLOAT, state.shape))
            found = [field for field in self._saying(name) if field.number == number]
            if len(found) != 1 or self._graph[slice(*found[0].place)] != wanted:
                return
            declared += found
        # One node reads the state, none reads the next one, and one makes it.
        readers = self._readers(state.input)
        made = [self._node(field) for field in self._making(state.output)]
        if len(readers) != 1 or len(made) != 1 or self._readers(state.output):
            return
        (first,), (last,) = readers, made
        if not first.outputs or not last.inputs or last.outputs[0] != state.output or first.inputs[0] != state.input:
            return
        edge = self._reshaped_edge(state, first, last) or self._transposed_edge(state, first, last)
        if edge is None:
            return
        names, shape = edge.names, edge.shape
        changes = {**edge.changes, first.place: b"", last.place: b""}
        for name in (first.outputs[0], last.inputs[0]):
            changes |= {field.place: b"" for field in self._saying(name) if field.number == _GRAPH_VALUE_INFO}
        for field, name in zip(declared, names, strict=True):
            changes[field.place] = encoded_field(field.number, value_info(name, _FLOAT, shape))
        kept = self._reshaped if len(state.shape) == 3 else self._transposed
        kept[state] = _Edge(changes, names, shape)

    def _reshaped_edge(self, state: StateRecord, first: _Node, last: _Node) -> _Edge | None:
        """Return what takes the reshapes around the operator off a state of three dimensions."""
        if len(state.shape) != 3 or {first.kind, last.kind} != {("", "Reshape")}:
            return None
        readers, beside = self._readers(first.outputs[0]), self._readers(last.inputs[0])
        node = readers[0] if len(readers) == 1 else None
        if node is None or node.kind != (DOMAIN, OPERATOR) or beside != [last]:
            return None
        is_taken_over = (
            len(node.inputs) > _STATE_INPUT
            and len(node.outputs) > _STATE_OUTPUT
            and node.inputs[_STATE_INPUT] == first.outputs[0]
            and node.outputs[_STATE_OUTPUT] == last.inputs[0]
        )
        if not is_taken_over:
            return None
        changes = {node.place: _taking_over(memoryview(self._graph), node, state, self._where)}
        return _Edge(changes, (state.input, state.output), (1, *state.shape))

    def _transposed_edge(self, state: StateRecord, first: _Node, last: _Node) -> _Edge | None:
        """Return how what is between two transposes becomes the edge of a state of two dimensions."""
        turns = {(node.kind, node.axes in ((), (1, 0))) for node in (first, last)}
        if len(state.shape) != 2 or turns != {(("", "Transpose"), True)}:
            return None
        inner = (first.outputs[0], last.inputs[0])
        is_given_out = any(
            field.number in (_GRAPH_INPUT, _GRAPH_OUTPUT) for name in inner for field in self._saying(name)
        )
        is_shared = any(inner[1] == edge.names[1] for edge in self._transposed.values())
        if inner[0] == inner[1] or is_given_out or is_shared:
            return None
        return _Edge({}, inner, (state.shape[1], state.shape[0]))

    def _readers(self, name: str) -> list[_Node]:
        return [self._node(field) for field in self._saying(name) if field.number == _GRAPH_NODE]

    def _saying(self, name: str) -> list[_Field]:
        """Return the fields that read ``name`` or declare it, or hold a graph that does; one each time."""
        return self._holding(1, name)

    def _making(self, name: str) -> list[_Field]:
        """Return the nodes that make ``name``."""
        return [field for field in self._holding(2, name) if field.number == _GRAPH_NODE]

    def _holding(self, number: int, name: str) -> list[_Field]:
        wanted = encoded_field(number, name.encode())
        if wanted in self._held:
            return self._held[wanted]
        found = self._held[wanted] = []
        place = self._graph.find(wanted)
        while place >= 0:
            found.append(self._fields[bisect_right(self._starts, place) - 1])
            place = self._graph.find(wanted, place + 1)
        return found

    def _node(self, field: _Field) -> _Node:
        message = Message(memoryview(self._graph)[field.content : field.place[1]], self._where)
        axes = tuple(axis for attribute in message.messages(5) for axis in Message(attribute, self._where).integers(8))
        kind = (message.text(7), message.text(4))
        return _Node(field.place, kind, _names(message, 1), _names(message, 2), axes)


def _names(node: Message, number: int) -> tuple[str, ...]:
    return tuple(str(name, "utf-8", "replace") for name in node.messages(number))


def _taking_over(graph: memoryview, node: _Node, state: StateRecord, where: str) -> bytes:
    """Return the field of ``node`` with the state itself as its input and output."""
    ((_, content, _, _),) = fields(graph[slice(*node.place)], where)
    assert isinstance(content, memoryview), "a node is a message"
    names = {1: (_STATE_INPUT, state.input), 2: (_STATE_OUTPUT, state.output)}
    seen = dict.fromkeys(names, 0)
    parts: list[bytes] = []
    for number, _, start, end in fields(content, where):
        if number in names:
            index, name = names[number]
            parts.append(encoded_field(number, name.encode()) if seen[number] == index else bytes(content[start:end]))
            seen[number] += 1
        else:
            parts.append(bytes(content[start:end]))
    return encoded_field(_GRAPH_NODE, b"".join(parts))


def _with_changes(data: memoryview, changes: Mapping[tuple[int, int], bytes]) -> bytes:
    parts: list[bytes | memoryview] = []
    done = 0
    for (start, end), content in sorted(changes.items()):
        parts += data[done:start], content
        done = end
    return b"".join([*parts, data[done:]])
