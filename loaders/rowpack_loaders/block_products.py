"""Check the products with weights in blocks (MatMulNBits) before a runtime packs them.

Packing follows the sizes that a node states and reads as many bytes of its weights, whatever shapes those have; so a
node is accepted only when its weights are initializers of exactly the shapes it implies. Field numbers are those of
``onnx.proto``: NodeProto.input = 1, .name = 3, .op_type = 4, .attribute = 5, .domain = 7; AttributeProto.name = 1,
.i = 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.onnx_wire import GRAPH_INITIALIZER, GRAPH_NODE, MODEL_GRAPH, tensor_dtype
from rowpack_loaders.protobuf_wire import Message

OPERATOR = "MatMulNBits"
DOMAIN = "com.microsoft"

WIDTHS = (4, 8)
"""Bits of a weight that the processor has fast products for."""

BLOCK_COLUMNS = (16, 32, 64, 128, 256)

LARGEST_EXTENT = 2**31 - 1

_SPELLED = OPERATOR.encode()
_TENSOR_DIMS = 1
_TENSOR_NAME = 8

Form = tuple[str, tuple[int, ...]]


def has_block_products(model: bytes) -> bool:
    """Tell whether ``model`` may have such products; quick."""
    return _SPELLED in model


def check_block_products(model: bytes, *, where: str) -> None:
    """Raise ``block_product_invalid`` with every problem of the model's products, or ``onnx_malformed``."""
    problems = list(block_product_problems(model, where=where))
    if problems:
        raise RowpackError.from_problems(
            "block_product_invalid", "The engine has products whose weights are not what they say", problems
        )


def block_product_problems(model: bytes, *, where: str) -> Iterator[Problem]:
    """Yield a problem for each product whose attributes or weights are not those of a blocked projection."""
    if not has_block_products(model):
        return
    graph_bytes = Message(memoryview(model), where).message(MODEL_GRAPH)
    graph = Message(graph_bytes or memoryview(b""), where)
    nodes = [Message(node, where) for node in graph.messages(GRAPH_NODE) if _SPELLED in bytes(node)]
    products = [node for node in nodes if node.text(4) == OPERATOR]
    if model.count(_SPELLED) != len(products):
        yield _problem(f"{model.count(_SPELLED)} mentions", where, f"{len(products)}, the nodes of the main graph")
        return
    tensors = {tensor.text(_TENSOR_NAME): tensor for tensor in _initializers(graph, where)}
    for node in products:
        yield from _node_problems(node, tensors, f"{where}: {node.text(3)[:128]}")


def _initializers(graph: Message, where: str) -> Iterator[Message]:
    for tensor in graph.messages(GRAPH_INITIALIZER):
        yield Message(tensor, where)


def _node_problems(node: Message, tensors: Mapping[str, Message], place: str) -> Iterator[Problem]:
    if node.text(7) != DOMAIN:
        yield _problem(f"domain {node.text(7)[:80]!r}", place, DOMAIN)
    attributes = {}
    for entry in node.messages(5):
        attribute = Message(entry, node.where)
        attributes[attribute.text(1)] = attribute.integer(3, -1)
    columns, rows = attributes.get("K", -1), attributes.get("N", -1)
    bits, block = attributes.get("bits", -1), attributes.get("block_size", -1)
    extents = all(0 < extent <= LARGEST_EXTENT for extent in (columns, rows))
    if not extents or bits not in WIDTHS or block not in BLOCK_COLUMNS or columns % block:
        found = f"K {columns}, N {rows}, bits {bits}, block_size {block}"
        yield _problem(found, place, f"bits {WIDTHS[0]} or {WIDTHS[1]}, a known block size, and whole blocks")
        return
    blocks = columns // block
    wanted: tuple[Form, ...] = (
        ("uint8", (rows, blocks, block * bits // 8)),
        ("float32", (rows, blocks)),
        ("uint8", (rows, (blocks * bits + 7) // 8)),
    )
    names = [_name(value) for value in node.messages(1)][1:]
    if len(names) != len(wanted):
        yield _problem(f"{len(names)} weights", place, "codes, scales and zero points")
        return
    for name, form in zip(names, wanted, strict=True):
        tensor = tensors.get(name)
        found_form = None if tensor is None else (tensor_dtype(tensor), tensor.integers(_TENSOR_DIMS))
        if found_form != form:
            shown = "no initializer" if found_form is None else f"{found_form[0]} {list(found_form[1])}"
            yield _problem(f"{name[:80]!r}: {shown}"[:300], place, f"{form[0]} {list(form[1])}")


def _name(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _problem(found: str, place: str, expected: str) -> Problem:
    return Problem(
        "block_product_invalid",
        "A product with weights in blocks is not what its weights are",
        where=place,
        found=found,
        expected=expected,
        remedy="Do not load the file, unless you trust whoever made it",
    )
