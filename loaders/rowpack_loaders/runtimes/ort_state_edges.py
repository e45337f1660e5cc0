"""Take the reshapes around ``LinearAttention`` off a graph's edges, so that a state goes in and out as it lies.

The operator wants a state with a batch of one before it, and the engines' states have none. A reshape between a graph's
input and a node costs nothing; one between a node and an output that a buffer is bound to copies the state, a megabyte
a layer. Both shapes are the same bytes, so the buffers are bound in the operator's shape instead. What is stored stays
as every loader knows it. Field numbers are those of ``onnx.proto``: GraphProto.node = 1, .input = 11, .output = 12,
.value_info = 13; NodeProto.input = 1, .output = 2, .op_type = 4, .domain = 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rowpack_loaders.manifest import StateRecord, TensorRecord
from rowpack_loaders.onnx_wire import MODEL_GRAPH, value_info
from rowpack_loaders.protobuf_wire import LENGTH_DELIMITED, Message, encoded_field, fields, messages_among

OPERATOR = "LinearAttention"
DOMAIN = "com.microsoft"

_STATE_INPUT = 3
_STATE_OUTPUT = 1

_GRAPH_NODE = 1
_GRAPH_INPUT = 11
_GRAPH_OUTPUT = 12
_GRAPH_VALUE_INFO = 13
_FLOAT = 1
_LONGEST_NAME_BYTES = 127


@dataclass(frozen=True)
class StateEdges:
    """A graph without those reshapes, and the shapes in which states are bound to it, by input and by output name.

    ``read_and_written`` are the inputs of these states: one node reads each of them and writes its successor, and no
    other node reads it.
    """

    model: bytes
    shapes: Mapping[str, tuple[int, ...]]
    read_and_written: frozenset[str]

    def bound(self, tensors: Iterable[TensorRecord]) -> list[TensorRecord]:
        """Return the manifest's tensors with the shapes that they are bound in."""
        return [replace(tensor, shape=self.shapes.get(tensor.name, tensor.shape)) for tensor in tensors]


@dataclass(frozen=True)
class _Node:
    place: tuple[int, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def take_reshapes_from_edges(model: bytes, states: Iterable[StateRecord], *, where: str) -> StateEdges:
    """Return ``model`` without a reshape between a state and the ``LinearAttention`` that takes it over.

    A state whose way in or out is any other stays as it is. Raises ``onnx_malformed``.
    """
    if OPERATOR.encode() not in model:
        return StateEdges(model, {}, frozenset())
    ((graph, graph_start, graph_end),) = messages_among(memoryview(model), MODEL_GRAPH, where)
    operators, into, out_of, infos = _parts(graph, where)
    changes: dict[tuple[int, int], bytes] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    taken: list[str] = []
    for state in states:
        first, last = into.get(state.input), out_of.get(state.output)
        node = None if first is None else operators.get(first.outputs[0])
        if first is None or last is None or node is None or node.outputs[_STATE_OUTPUT] != last.inputs[0]:
            continue
        # How often each name is said where names are read: by the one reshape or node, and by what declares it.
        between = (first.outputs[0], last.inputs[0])
        said = {state.input: 2, state.output: 1, **{name: 1 + (name in infos) for name in between}}
        if not _is_declared(graph, infos, state) or any(
            model.count(_read_name(name)) != count for name, count in said.items()
        ):
            continue
        shape = (1, *state.shape)
        changes[first.place] = changes[last.place] = b""
        changes.update((infos[name], b"") for name in between if name in infos)
        changes[infos[state.input]] = encoded_field(_GRAPH_INPUT, value_info(state.input, _FLOAT, shape))
        changes[infos[state.output]] = encoded_field(_GRAPH_OUTPUT, value_info(state.output, _FLOAT, shape))
        changes[node.place] = _taking_over(graph, node, state, where)
        shapes[state.input] = shapes[state.output] = shape
        taken.append(state.input)
    if not changes:
        return StateEdges(model, {}, frozenset())
    changed = encoded_field(MODEL_GRAPH, _with_changes(graph, changes))
    return StateEdges(b"".join([model[:graph_start], changed, model[graph_end:]]), shapes, frozenset(taken))


def _parts(
    graph: memoryview, where: str
) -> tuple[dict[str, _Node], dict[str, _Node], dict[str, _Node], dict[str, tuple[int, int]]]:
    """Return the operators by the state they read, reshapes by what they read and by what they make, and the places
    of what inputs, outputs and results are declared to be, by name."""
    operators: dict[str, _Node] = {}
    into: dict[str, _Node] = {}
    out_of: dict[str, _Node] = {}
    infos: dict[str, tuple[int, int]] = {}
    for number, value, start, end in fields(graph, where):
        if isinstance(value, int):
            continue
        if number in (_GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO):
            infos[Message(value, where).text(1)] = (start, end)
        elif number == _GRAPH_NODE and (OPERATOR.encode() in (content := bytes(value)) or b"Reshape" in content):
            message = Message(value, where)
            kind = (message.text(7), message.text(4))
            node = _Node((start, end), _names(message, 1), _names(message, 2))
            if kind == (DOMAIN, OPERATOR) and len(node.inputs) > _STATE_INPUT and len(node.outputs) > _STATE_OUTPUT:
                operators[node.inputs[_STATE_INPUT]] = node
            elif kind == ("", "Reshape") and node.inputs and node.outputs:
                into[node.inputs[0]] = out_of[node.outputs[0]] = node
    return operators, into, out_of, infos


def _is_declared(graph: memoryview, infos: Mapping[str, tuple[int, int]], state: StateRecord) -> bool:
    """Tell whether the graph declares the state in three dimensions just as the manifest does.

    What does not agree stays, for the check of the engine's inputs and outputs to find.
    """
    return (
        state.dtype == "float32"
        and len(state.shape) == 3
        and all(
            name in infos and graph[slice(*infos[name])] == encoded_field(field, value_info(name, _FLOAT, state.shape))
            for field, name in ((_GRAPH_INPUT, state.input), (_GRAPH_OUTPUT, state.output))
        )
    )


def _names(node: Message, number: int) -> tuple[str, ...]:
    return tuple(str(name, "utf-8", "replace") for name in node.messages(number))


def _read_name(name: str) -> bytes:
    """Return the bytes by which a node reads ``name``, or a declaration begins: field 1, whole."""
    content = name.encode()
    if len(content) > _LONGEST_NAME_BYTES:
        return b"\0"  # never as often as a reader
    return bytes((1 << 3 | LENGTH_DELIMITED, len(content))) + content


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
