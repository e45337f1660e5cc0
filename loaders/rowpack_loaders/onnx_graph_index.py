"""Find the nodes of a graph by the names they read and make, in one walk over its bytes.

A graph has thousands of nodes of which a loader looks at a few, and every load waits for it, so nodes are walked by
their tags and parsed only when they are found. Field numbers are those of ``onnx.proto``: GraphProto.node = 1;
NodeProto.input = 1, .output = 2, .op_type = 4, .attribute = 5, .domain = 7; AttributeProto.ints = 8, .type = 20, where
GRAPH is 5 and GRAPHS 10; ValueInfoProto.name = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_NODE, GRAPH_OUTPUT, GRAPH_VALUE_INFO
from rowpack_loaders.protobuf_wire import Message, encoded_field, fields

_DECLARATIONS = frozenset({GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO})
_INPUT_NUMBER = 1
_OUTPUT_NUMBER = 2
_INPUT = 0x0A
_OUTPUT = 0x12
_ATTRIBUTE = 0x2A
_LENGTH_DELIMITED = 2
_HOLDS_GRAPHS = (b"\xa0\x01\x05", b"\xa0\x01\x0a")


Changes = dict[tuple[int, int], bytes]
"""What takes the place of ``graph[start:end]``."""


class GraphNode(NamedTuple):
    """A node: where its field lies in the graph, its (domain, operator), and the axes that an attribute lists."""

    place: tuple[int, int]
    kind: tuple[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: tuple[int, ...]


class Declaration(NamedTuple):
    """An input, an output or a result of the graph whose type is declared: the field's number and its place."""

    field: int
    place: tuple[int, int]


class GraphIndex:
    """The nodes and declarations of one GraphProto; raises ``onnx_malformed`` for bytes that are none."""

    def __init__(self, graph: bytes, where: str) -> None:
        self._graph = graph
        self._where = where
        self._places: list[tuple[int, int, int]] = []
        self._readers: dict[bytes, list[int]] = {}
        self._makers: dict[bytes, list[int]] = {}
        self._declared: dict[bytes, list[Declaration]] = {}
        self._holders: list[int] = []
        for number, value, start, end in fields(memoryview(graph), where):
            if isinstance(value, int):
                continue
            if number == GRAPH_NODE:
                self._places.append((start, end - len(value), end))
                self._walk(len(self._places) - 1)
            elif number in _DECLARATIONS:
                name = Message(value, where).text(1).encode()
                self._declared.setdefault(name, []).append(Declaration(number, (start, end)))

    def readers(self, name: str) -> list[GraphNode]:
        """Return the nodes that read ``name``, one for each time, and those that hold a graph in which it is said."""
        wanted = name.encode()
        found = list(self._readers.get(wanted, ()))
        if self._holders:
            said = encoded_field(1, wanted)
            for index in self._holders:
                _, content, end = self._places[index]
                if index not in found and self._graph.find(said, content, end) >= 0:
                    found.append(index)
        return [self._node(index) for index in found]

    def makers(self, name: str) -> list[GraphNode]:
        """Return the nodes that make ``name``: one in a graph that is right."""
        return [self._node(index) for index in self._makers.get(name.encode(), ())]

    def declarations(self, name: str) -> list[Declaration]:
        """Return the declarations of ``name``: one in a graph that is right."""
        return self._declared.get(name.encode(), [])

    def bytes_at(self, place: tuple[int, int]) -> bytes:
        """Return the bytes of a field of the graph."""
        return self._graph[slice(*place)]

    def with_input(self, field: bytes, position: int, name: str) -> bytes:
        """Return the field of a node with ``name`` as the input at ``position``."""
        return self._renamed(field, _INPUT_NUMBER, position, name)

    def with_output(self, field: bytes, position: int, name: str) -> bytes:
        """Return the field of a node with ``name`` as the output at ``position``."""
        return self._renamed(field, _OUTPUT_NUMBER, position, name)

    def changed(self, changes: Mapping[tuple[int, int], bytes]) -> bytes:
        """Return the graph with ``changes``."""
        graph = memoryview(self._graph)
        done = 0
        parts: list[bytes | memoryview] = []
        for (start, end), content in sorted(changes.items()):
            parts += graph[done:start], content
            done = end
        return b"".join([*parts, graph[done:]])

    def _renamed(self, field: bytes, number: int, position: int, name: str) -> bytes:
        ((_, content, _, _),) = fields(memoryview(field), self._where)
        assert isinstance(content, memoryview), "a node is a message"
        seen = 0
        parts: list[bytes] = []
        for found, _, start, end in fields(content, self._where):
            is_meant = found == number and seen == position
            seen += found == number
            parts.append(encoded_field(number, name.encode()) if is_meant else bytes(content[start:end]))
        return encoded_field(GRAPH_NODE, b"".join(parts))

    def _walk(self, index: int) -> None:
        """Note what a node reads and makes, and whether it holds graphs."""
        graph = self._graph
        _, position, end = self._places[index]
        while position + 1 < end:
            tag, length = graph[position], graph[position + 1]
            if tag & 0x87 != _LENGTH_DELIMITED or length > 0x7F:
                self._walk_slowly(index, position)
                return
            position += 2
            stop = position + length
            if tag == _INPUT:
                self._readers.setdefault(graph[position:stop], []).append(index)
            elif tag == _OUTPUT:
                self._makers.setdefault(graph[position:stop], []).append(index)
            elif tag == _ATTRIBUTE:
                self._note_graphs(index, graph[position:stop])
            position = stop

    def _walk_slowly(self, index: int, position: int) -> None:
        """Go on from ``position``, where a field is long or of another kind."""
        end = self._places[index][2]
        for number, value, _, _ in fields(memoryview(self._graph)[position:end], self._where):
            if isinstance(value, int):
                continue
            if number == _INPUT_NUMBER:
                self._readers.setdefault(bytes(value), []).append(index)
            elif number == _OUTPUT_NUMBER:
                self._makers.setdefault(bytes(value), []).append(index)
            elif number == 5:
                self._note_graphs(index, bytes(value))

    def _note_graphs(self, index: int, attribute: bytes) -> None:
        if any(kind in attribute for kind in _HOLDS_GRAPHS) and index not in self._holders[-1:]:
            self._holders.append(index)

    def _node(self, index: int) -> GraphNode:
        start, content, end = self._places[index]
        message = Message(memoryview(self._graph)[content:end], self._where)
        axes = tuple(axis for attribute in message.messages(5) for axis in Message(attribute, self._where).integers(8))
        kind = (message.text(7), message.text(4))
        return GraphNode((start, end), kind, _names(message, _INPUT_NUMBER), _names(message, _OUTPUT_NUMBER), axes)


def _names(node: Message, number: int) -> tuple[str, ...]:
    return tuple(str(name, "utf-8", "replace") for name in node.messages(number))
