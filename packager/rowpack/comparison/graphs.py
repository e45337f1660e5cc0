"""Compare two ONNX engines: operators by kind, and the nodes and constants that changed, by name.

Read from the protobuf wire, without the onnx package. Field numbers are those of ``onnx.proto``:

    ModelProto.graph = 7; GraphProto.node = 1, .initializer = 5;
    NodeProto.input = 1, .output = 2, .name = 3, .op_type = 4, .attribute = 5, .domain = 7;
    AttributeProto.name = 1, .g = 6, .graphs = 11;
    TensorProto.name = 8, .external_data = 13
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rowpack.comparison.difference import Difference, Pair
from rowpack_loaders.onnx_interface import OnnxTensor, read_onnx_interface
from rowpack_loaders.protobuf_wire import Message

_GRAPH_LIMIT_BYTES = 2**31


@dataclass(frozen=True)
class Node:
    """One operator call; ``attributes`` maps names to their encoded values."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, bytes]


@dataclass(frozen=True)
class Graph:
    """What is compared of a model: nodes, constants, inputs and outputs by name, and its versions in words."""

    nodes: dict[str, Node]
    constants: dict[str, bytes]
    weights: tuple[str, ...]
    inputs: dict[str, str]
    outputs: dict[str, str]
    versions: dict[str, str]


def graph_differences(pair: Pair) -> Iterator[Difference]:
    """Yield what differs between the ONNX engines that both bundles have."""
    for section in pair.common(["engine.onnx", "prefill.onnx"]):
        if pair.same_section(section):
            continue
        data = pair.read(section, _GRAPH_LIMIT_BYTES)
        first, second = (read_graph(side, where=section) for side in data)
        found = list(_differences(section, first, second))
        if not found:
            found = [Difference("graph", section, "the same nodes and constants, encoded otherwise")]
        yield from found


def read_graph(data: bytes, *, where: str) -> Graph:
    """Return the nodes and constants of a model; raise ``onnx_malformed``."""
    interface = read_onnx_interface(data, where=where)
    graph = Message(Message(memoryview(data), where).message(7) or memoryview(b""), where)
    nodes: dict[str, Node] = {}
    for index, fields in enumerate(_all_nodes(graph)):
        name, node = _node(fields)
        nodes[name if name and name not in nodes else f"#{index} {name}"] = node
    constants = {}
    for encoded in graph.messages(5):
        tensor = Message(encoded, where)
        if 13 not in tensor:
            constants[tensor.text(8)] = bytes(encoded)
    return Graph(
        nodes=nodes,
        constants=constants,
        weights=tuple(reference.name for reference in interface.weights),
        inputs={tensor.name: _in_words(tensor) for tensor in interface.inputs},
        outputs={tensor.name: _in_words(tensor) for tensor in interface.outputs},
        versions={
            "IR version": str(interface.ir_version),
            "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in interface.opsets.items()),
        },
    )


def _differences(section: str, first: Graph, second: Graph) -> Iterator[Difference]:
    for words, value in first.versions.items():
        if value != second.versions[words]:
            yield Difference("graph", section, words, value, second.versions[words])
    yield from _sides("input", section, first.inputs, second.inputs)
    yield from _sides("output", section, first.outputs, second.outputs)
    counts = [Counter(node.operator for node in graph.nodes.values()) for graph in (first, second)]
    for operator in sorted(counts[0] | counts[1]):
        if counts[0][operator] != counts[1][operator]:
            yield Difference("graph", section, operator, *(f"{count[operator]} calls" for count in counts))
    yield from _sides("node", section, first.nodes, second.nodes)
    yield from _sides("constant", section, first.constants, second.constants)
    yield from _sides("weight", section, dict.fromkeys(first.weights), dict.fromkeys(second.weights))


def _sides(kind: str, section: str, first: Mapping[str, object], second: Mapping[str, object]) -> Iterator[Difference]:
    for name in [*first, *(name for name in second if name not in first)]:
        place = f"{section}: {kind} {name}"
        if name not in second:
            yield Difference("graph", place, "only the first has it")
        elif name not in first:
            yield Difference("graph", place, "only the second has it")
        elif first[name] != second[name]:
            yield _changed(place, first[name], second[name])


def _changed(place: str, first: object, second: object) -> Difference:
    if isinstance(first, str) and isinstance(second, str):
        return Difference("graph", place, "differs", first, second)
    if not (isinstance(first, Node) and isinstance(second, Node)):
        return Difference("graph", place, "has another value")
    if first.operator != second.operator:
        return Difference("graph", place, "is another operator", first.operator, second.operator)
    kinds = [kind for kind in ("inputs", "outputs") if getattr(first, kind) != getattr(second, kind)]
    names = sorted({*first.attributes, *second.attributes})
    kinds += [f"attribute {name}" for name in names if first.attributes.get(name) != second.attributes.get(name)]
    return Difference("graph", place, f"{first.operator} with other {', '.join(kinds)}")


def _all_nodes(graph: Message) -> Iterator[Message]:
    """Yield the nodes of ``graph`` and of the graphs inside; how deep they lie was bounded when it was read."""
    for encoded in graph.messages(1):
        node = Message(encoded, graph.where)
        yield node
        for attribute in node.messages(5):
            for inner in Message(attribute, graph.where).messages(6, 11):
                yield from _all_nodes(Message(inner, graph.where))


def _node(fields: Message) -> tuple[str, Node]:
    domain, operator = fields.text(7), fields.text(4)
    attributes = {Message(encoded, fields.where).text(1): bytes(encoded) for encoded in fields.messages(5)}
    return fields.text(3), Node(
        operator=f"{domain}.{operator}" if domain not in ("", "ai.onnx") else operator,
        inputs=tuple(bytes(name).decode("utf-8", "replace") for name in fields.messages(1)),
        outputs=tuple(bytes(name).decode("utf-8", "replace") for name in fields.messages(2)),
        attributes=attributes,
    )


def _in_words(tensor: OnnxTensor) -> str:
    return f"{tensor.dtype} [{', '.join(map(str, tensor.shape or ()))}]"
