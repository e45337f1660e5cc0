"""Nodes found by what they read and make, against the same graph as onnx reads it."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.onnx_graph_index import GraphIndex
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO

LONG = "a_name_of_more_bytes_than_one_byte_of_length_can_say." * 3


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])


def graph_of(*nodes: onnx.NodeProto) -> bytes:
    graph = helper.make_graph(list(nodes), "g", [value("x")], [value("y")], value_info=[value(LONG)])
    return bytes(graph.SerializeToString())


NODES = [
    helper.make_node("Add", ["x", "x"], [LONG]),
    helper.make_node("Mul", [LONG, "x"], ["y"], name=LONG),
    helper.make_node("Split", ["y"], ["left", "right"], axis=0, domain="com.example"),
    helper.make_node("Transpose", ["left"], ["turned"], perm=[1, 0], doc_string=LONG),
]


@pytest.mark.parametrize("name", ["x", "y", LONG, "left", "right", "turned", "nobody's", "g", "axis"])
def test_nodes_are_those_that_onnx_finds(name: str) -> None:
    index = GraphIndex(graph_of(*NODES), "engine.onnx")
    readers = [node for node in NODES for read in node.input if read == name]
    makers = [node for node in NODES for made in node.output if made == name]
    for found, wanted in ((index.readers(name), readers), (index.makers(name), makers)):
        assert [(each.kind, list(each.inputs), list(each.outputs)) for each in found] == [
            ((node.domain, node.op_type), list(node.input), list(node.output)) for node in wanted
        ]


def test_a_node_says_where_it_lies_and_what_axes_it_lists() -> None:
    data = graph_of(*NODES)
    (transpose,) = GraphIndex(data, "engine.onnx").makers("turned")
    assert transpose.axes == (1, 0)
    parsed = onnx.GraphProto.FromString(data[slice(*transpose.place)])
    assert list(parsed.node) == [NODES[3]]


def test_declarations_tell_inputs_outputs_and_results() -> None:
    data = graph_of(*NODES)
    index = GraphIndex(data, "engine.onnx")
    for name, field in (("x", GRAPH_INPUT), ("y", GRAPH_OUTPUT), (LONG, GRAPH_VALUE_INFO)):
        (found,) = index.declarations(name)
        assert found.field == field
        parsed = onnx.GraphProto.FromString(data[slice(*found.place)])
        assert [each.name for each in (*parsed.input, *parsed.output, *parsed.value_info)] == [name]
    assert index.declarations("left") == []


def test_what_a_branch_reads_is_read_by_the_node_that_holds_it() -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "inner", [], [value("z")])
    branch = helper.make_node("If", ["y"], ["w"], then_branch=inner, else_branch=inner)
    index = GraphIndex(graph_of(*NODES, branch), "engine.onnx")
    assert [node.kind[1] for node in index.readers("x")] == ["Add", "Add", "Mul", "If"]
    assert [node.kind[1] for node in index.readers("left")] == ["Transpose"]


def test_a_field_of_a_later_format_is_passed_over() -> None:
    node = NODES[0].SerializeToString()
    strange = b"\xf8\x06\x01" + node + b"\xf8\x06\x01"  # field 111, a number
    data = b"\x0a" + bytes([len(strange) & 0x7F | 0x80, len(strange) >> 7]) + strange
    assert [found.kind[1] for found in GraphIndex(data, "engine.onnx").makers(LONG)] == ["Add"]


@pytest.mark.parametrize("cut", [1, 5])
def test_broken_bytes_are_refused(cut: int) -> None:
    data: Any = graph_of(*NODES)
    with pytest.raises(RowpackError) as caught:
        GraphIndex(data[:-cut], "engine.onnx")
    assert caught.value.code == "onnx_malformed"
