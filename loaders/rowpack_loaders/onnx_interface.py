"""Read what an ONNX model declares: versions, inputs, outputs, weights, and data it takes from elsewhere.

Without the onnx package. Field numbers are those of ``onnx.proto``:

    ModelProto.ir_version = 1, .graph = 7, .opset_import = 8, .training_info = 20, .functions = 25;
    OperatorSetIdProto.domain = 1, .version = 2; TrainingInfoProto.initialization = 1, .algorithm = 2;
    FunctionProto.name = 1, .node = 7, .domain = 10, .attribute_proto = 11;
    GraphProto.node = 1, .initializer = 5, .input = 11, .output = 12, .sparse_initializer = 15;
    NodeProto.op_type = 4, .attribute = 5, .domain = 7;
    AttributeProto.t = 5, .g = 6, .tensors = 10, .graphs = 11, .sparse_tensor = 22, 23;
    SparseTensorProto.values = 1, .indices = 2; TensorProto.name = 8;
    ValueInfoProto.name = 1, .type = 2; TypeProto.tensor_type = 1; TypeProto.Tensor.elem_type = 1, .shape = 2;
    TensorShapeProto.dim = 1; Dimension.dim_value = 1, .dim_param = 2
"""

from __future__ import annotations

from dataclasses import dataclass

from rowpack_loaders.onnx_wire import (
    DTYPES,
    GRAPH_INITIALIZER,
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    TENSOR_EXTERNAL_DATA,
    ExternalData,
    read_reference,
)
from rowpack_loaders.protobuf_wire import Message, malformed

MOST_LEVELS = 16
"""How deep graphs may lie in attributes of graphs; the engines of a bundle have none."""

_TENSOR_NAME = 8
_MODEL_IR_VERSION = 1
_MODEL_OPSET_IMPORT = 8
_MODEL_TRAINING_INFO = 20
_MODEL_FUNCTIONS = 25
_FUNCTION_DOMAIN = 10
_GRAPH_SPARSE_INITIALIZER = 15


@dataclass(frozen=True)
class OnnxTensor:
    """An input or output of the graph; a string in ``shape`` names a free dimension, "" is one without a name."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class OnnxInterface:
    """What a model declares.

    ``initializer_names`` are all of the main graph's, ``weights`` those with external data; ``misplaced`` names
    tensors elsewhere (in subgraphs, attributes, functions) that also have external data, where no loader looks.
    ``custom_operators`` are ``domain.Operator`` of every node beyond the standard and the model's own functions.
    """

    ir_version: int
    opsets: dict[str, int]
    function_domains: frozenset[str]
    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    initializer_names: tuple[str, ...]
    weights: tuple[ExternalData, ...]
    misplaced: tuple[str, ...]
    custom_operators: tuple[str, ...]


def read_onnx_interface(data: bytes, *, where: str) -> OnnxInterface:
    """Return what the model in ``data`` declares; raise ``onnx_malformed`` with what cannot be read one way only."""
    model = Message(memoryview(data), where)
    graph_bytes = model.message(MODEL_GRAPH)
    if graph_bytes is None:
        raise malformed(where, "no graph", "a model with a graph")
    graph = Message(graph_bytes, where)
    initializers = [Message(tensor, where) for tensor in graph.messages(GRAPH_INITIALIZER)]
    names = tuple(tensor.text(_TENSOR_NAME) for tensor in initializers)
    if len(set(names)) != len(names):
        raise malformed(where, "two initializers of one name", "each name once")
    references = [read_reference(tensor) for tensor in initializers]
    walk = _walk(model, graph)
    return OnnxInterface(
        ir_version=model.integer(_MODEL_IR_VERSION),
        opsets=_opsets(model),
        function_domains=frozenset(
            Message(function, where).text(_FUNCTION_DOMAIN) for function in model.messages(_MODEL_FUNCTIONS)
        ),
        inputs=tuple(_value(value, where) for value in graph.messages(GRAPH_INPUT)),
        outputs=tuple(_value(value, where) for value in graph.messages(GRAPH_OUTPUT)),
        initializer_names=names,
        weights=tuple(reference for reference in references if reference is not None),
        misplaced=tuple(walk.found),
        custom_operators=tuple(sorted(f"{domain}.{name}" for domain, name in walk.operators - _functions(model))),
    )


def has_misplaced_external_data(data: bytes, reference_count: int, *, where: str) -> bool:
    """Tell whether a tensor other than the ``reference_count`` initializers of the main graph has external data.

    Quick for the usual model: every reference spells the word ``location``, so a model with as many of them as the
    main graph has references has no others.
    """
    if data.count(b"location") == reference_count:
        return False
    model = Message(memoryview(data), where)
    graph_bytes = model.message(MODEL_GRAPH)
    return graph_bytes is not None and bool(_walk(model, Message(graph_bytes, where)).found)


def _opsets(model: Message) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in model.messages(_MODEL_OPSET_IMPORT):
        opset = Message(entry, model.where)
        domain = opset.text(1)
        domain = "" if domain == "ai.onnx" else domain
        if domain in opsets:
            raise malformed(model.where, f"domain {domain[:80]!r} imported twice", "each domain once")
        opsets[domain] = opset.integer(2)
    return opsets


def _value(data: memoryview, where: str) -> OnnxTensor:
    value = Message(data, where)
    name = value.text(1)
    value_type = value.message(2)
    tensor_type = None if value_type is None else Message(value_type, where).message(1)
    if tensor_type is None:
        return OnnxTensor(name, "not a tensor", None)
    tensor = Message(tensor_type, where)
    number = tensor.integer(1)
    shape = tensor.message(2)
    return OnnxTensor(name, DTYPES.get(number, f"type {number}"), None if shape is None else _shape(shape, where))


def _shape(data: memoryview, where: str) -> tuple[int | str, ...]:
    shape: list[int | str] = []
    for dimension in Message(data, where).messages(1):
        fields = Message(dimension, where)
        if 1 in fields and 2 in fields:
            raise malformed(where, "a dimension with a size and a name", "one of them")
        shape.append(fields.integer(1) if 1 in fields else fields.text(2))
    return tuple(shape)


def _functions(model: Message) -> set[tuple[str, str]]:
    functions = [Message(function, model.where) for function in model.messages(_MODEL_FUNCTIONS)]
    return {(function.text(_FUNCTION_DOMAIN), function.text(1)) for function in functions}


def _walk(model: Message, graph: Message) -> _Walk:
    walk = _Walk(model.where)
    walk.graph_without_initializers(graph, 0)
    for function in model.messages(_MODEL_FUNCTIONS):
        fields = Message(function, model.where)
        for node in fields.messages(7):
            walk.node(Message(node, model.where), 0)
        for attribute in fields.messages(11):
            walk.attribute(Message(attribute, model.where), 0)
    for training in model.messages(_MODEL_TRAINING_INFO):
        for part in Message(training, model.where).messages(1, 2):
            walk.graph(Message(part, model.where), 0)
    return walk


class _Walk:
    """Visit every node and every tensor of a model but the initializers of its main graph.

    ``found`` are tensors with external data, ``operators`` domain and name of what is not in the standard domain.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[str] = []
        self.operators: set[tuple[str, str]] = set()

    def graph(self, graph: Message, level: int) -> None:
        if level > MOST_LEVELS:
            raise malformed(self.where, f"graphs nested more than {MOST_LEVELS} deep", f"at most {MOST_LEVELS} levels")
        for tensor in graph.messages(GRAPH_INITIALIZER):
            self.tensor(tensor)
        self.graph_without_initializers(graph, level)

    def graph_without_initializers(self, graph: Message, level: int) -> None:
        for sparse in graph.messages(_GRAPH_SPARSE_INITIALIZER):
            self.sparse_tensor(sparse)
        for node in graph.messages(GRAPH_NODE):
            self.node(Message(node, self.where), level)

    def node(self, node: Message, level: int) -> None:
        if 7 in node and node.text(7) not in ("", "ai.onnx"):
            self.operators.add((node.text(7), node.text(4)))
        self.attributes(node, level)

    def attributes(self, node: Message, level: int) -> None:
        for attribute in node.messages(5):
            self.attribute(Message(attribute, self.where), level)

    def attribute(self, attribute: Message, level: int) -> None:
        for tensor in attribute.messages(5, 10):
            self.tensor(tensor)
        for sparse in attribute.messages(22, 23):
            self.sparse_tensor(sparse)
        for graph in attribute.messages(6, 11):
            self.graph(Message(graph, self.where), level + 1)

    def sparse_tensor(self, data: memoryview) -> None:
        for tensor in Message(data, self.where).messages(1, 2):
            self.tensor(tensor)

    def tensor(self, data: memoryview) -> None:
        tensor = Message(data, self.where)
        if TENSOR_EXTERNAL_DATA in tensor or tensor.integer(14):
            self.found.append(tensor.text(_TENSOR_NAME))
