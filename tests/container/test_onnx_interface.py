"""What an ONNX model declares, read from its bytes alone, against what the onnx package reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.onnx_interface import has_misplaced_external_data, read_onnx_interface
from rowpack_loaders.onnx_wire import external_data, relocate_external_data
from rowpack_loaders.protobuf_wire import encoded_field, encoded_varint


def external_tensor(name: str = "w", **entries: str) -> onnx.TensorProto:
    """Return a tensor of two float32 whose data lie elsewhere."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "weights.safetensors", "offset": "4096", "length": "8", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model(*initializers: onnx.TensorProto, nodes: list[Any] | None = None, **options: Any) -> onnx.ModelProto:
    """Return a model with two inputs of every kind of dimension."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2]),
        helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [None, 3]),
    ]
    outputs = [helper.make_tensor_value_info("z", TensorProto.INT32, [])]
    graph = helper.make_graph(nodes or [], "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **options)


def test_declarations_are_those_the_onnx_package_wrote() -> None:
    inline = numpy_helper.from_array(np.array([1, 2], np.int64), "c")
    found = read_onnx_interface(model(external_tensor(), inline).SerializeToString(), where="m")
    assert (found.ir_version, found.opsets) == (10, {"": 20, "com.example": 3})
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in found.inputs] == [
        ("x", "float32", ("rows", 2)),
        ("y", "bfloat16", ("", 3)),
    ]
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in found.outputs] == [("z", "int32", ())]
    assert found.initializer_names == ("w", "c")
    (weight,) = found.weights
    assert (weight.name, weight.dtype, weight.shape) == ("w", "float32", (2,))
    assert (weight.location, weight.offset_bytes, weight.length_bytes) == ("weights.safetensors", 4096, 8)
    assert found.misplaced == ()


def test_an_input_without_a_shape_or_of_another_type_is_told_as_such() -> None:
    built = model()
    built.graph.input[0].type.tensor_type.ClearField("shape")
    built.graph.input[1].type.Clear()
    found = read_onnx_interface(built.SerializeToString(), where="m")
    assert [(tensor.dtype, tensor.shape) for tensor in found.inputs] == [("float32", None), ("not a tensor", None)]


def test_relocation_moves_the_references_and_nothing_else() -> None:
    inline = numpy_helper.from_array(np.array([1, 2], np.int64), "c")
    built = model(external_tensor(), inline, external_tensor("v", offset="5000"))
    moved = onnx.ModelProto.FromString(
        relocate_external_data(built.SerializeToString(), "x.bundle", 8192, where="m"),
    )
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in moved.graph.initializer
        if tensor.external_data
    ]
    assert places == [
        {"location": "x.bundle", "offset": "12288", "length": "8"},
        {"location": "x.bundle", "offset": "13192", "length": "8"},
    ]
    for tensor in [*moved.graph.initializer, *built.graph.initializer]:
        tensor.ClearField("external_data")
    assert moved == built


def subgraph() -> onnx.GraphProto:
    """Return a graph whose initializer has external data."""
    return helper.make_graph([], "inner", [], [], [external_tensor("inner")])


def in_node(built: onnx.ModelProto, **attribute: Any) -> None:
    """Add a node with one attribute."""
    built.graph.node.append(helper.make_node("Constant", [], ["c"], **attribute))


def in_function(built: onnx.ModelProto) -> None:
    """Add a function one of whose nodes holds the tensor."""
    node = helper.make_node("Constant", [], ["c"], value=external_tensor("inner"))
    opset = [helper.make_opsetid("", 20)]
    built.functions.append(helper.make_function("com.example", "F", [], ["c"], [node], opset))


def in_sparse_initializer(built: onnx.ModelProto) -> None:
    """Add a sparse initializer whose values lie elsewhere."""
    built.graph.sparse_initializer.add().values.CopyFrom(external_tensor("inner"))


def in_training(built: onnx.ModelProto) -> None:
    """Add a training part with a graph."""
    built.training_info.add().initialization.CopyFrom(subgraph())


def marked_only(built: onnx.ModelProto) -> None:
    """Add a constant that says its data are elsewhere, and not where."""
    tensor = TensorProto(name="inner", data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="*/_ORT_MEM_ADDR_/*")
    in_node(built, value=tensor)


MISPLACED: dict[str, Callable[[onnx.ModelProto], None]] = {
    "attribute": lambda built: in_node(built, value=external_tensor("inner")),
    "attribute of tensors": lambda built: in_node(built, values=[external_tensor("inner")]),
    "subgraph": lambda built: in_node(built, body=subgraph()),
    "subgraphs": lambda built: in_node(built, bodies=[subgraph()]),
    "function": in_function,
    "sparse initializer": in_sparse_initializer,
    "training part": in_training,
    "address in memory": marked_only,
}


@pytest.mark.parametrize("place", MISPLACED)
def test_external_data_anywhere_else_is_found(place: str) -> None:
    built = model(external_tensor())
    assert not has_misplaced_external_data(built.SerializeToString(), 1, where="m")
    MISPLACED[place](built)
    data = built.SerializeToString()
    assert read_onnx_interface(data, where="m").misplaced == ("inner",)
    assert has_misplaced_external_data(data, 1, where="m")


def test_the_word_location_by_itself_is_no_reference() -> None:
    built = model(external_tensor(), doc_string="location")
    assert not has_misplaced_external_data(built.SerializeToString(), 1, where="m")
    assert read_onnx_interface(built.SerializeToString(), where="m").misplaced == ()


def nested(levels: int) -> onnx.ModelProto:
    """Return a model with graphs inside graphs."""
    graph = helper.make_graph([], "deepest", [], [])
    for _ in range(levels):
        graph = helper.make_graph([helper.make_node("If", [], [], then_branch=graph)], "g", [], [])
    return helper.make_model(graph)


def twice(field_number: int, built: onnx.ModelProto) -> bytes:
    """Return the model with one of its fields once more at the end, as protobuf allows."""
    whole = built.SerializeToString()
    if field_number == 1:
        return whole + encoded_varint(1 << 3) + encoded_varint(7)
    return whole + encoded_field(field_number, built.graph.SerializeToString())


def with_entry(tensor: onnx.TensorProto, key: str, value: str) -> bytes:
    """Return a model whose weight has one more entry in its external data."""
    tensor.external_data.add(key=key, value=value)
    return model(tensor).SerializeToString()


def half_said() -> bytes:
    """Return a model whose weight holds its bytes and says that they lie elsewhere."""
    tensor = external_tensor()
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = bytes(8)
    return model(tensor).SerializeToString()


def both_dimensions() -> bytes:
    """Return a model with a dimension of a size and a name; protobuf itself would keep the last."""
    dimension = encoded_varint(1 << 3) + encoded_varint(4) + encoded_field(2, b"rows")
    tensor_type = encoded_varint(1 << 3) + encoded_varint(1) + encoded_field(2, encoded_field(1, dimension))
    value = encoded_field(1, b"x") + encoded_field(2, encoded_field(1, tensor_type))
    return encoded_field(7, encoded_field(11, value))


MALFORMED: dict[str, bytes] = {
    "no bytes": b"",
    "no graph": encoded_varint(1 << 3) + encoded_varint(10),
    "text": b"decode graph",
    "cut": model().SerializeToString()[:-1],
    "a length past the end": encoded_varint(7 << 3 | 2) + encoded_varint(2**40),
    "a number without an end": b"\xff" * 11,
    "field 0": b"\x02\x00",
    "a group": b"\x0b",
    "two graphs": twice(7, model()),
    "two versions": twice(1, model()),
    "a domain twice": model().SerializeToString() + encoded_field(8, encoded_varint(2 << 3) + encoded_varint(21)),
    "a weight twice": model(external_tensor(), external_tensor()).SerializeToString(),
    "a location twice": with_entry(external_tensor(), "location", "/etc/passwd"),
    "an offset in words": with_entry(TensorProto(name="w", data_location=1), "offset", "many"),
    "a negative offset": with_entry(TensorProto(name="w", data_location=1), "offset", "-1"),
    "an offset in other digits": with_entry(TensorProto(name="w", data_location=1), "offset", "٣"),
    "an offset of 10,000 digits": with_entry(TensorProto(name="w", data_location=1), "offset", "9" * 10_000),
    "inline and external": half_said(),
    "external without a place": model(TensorProto(name="w", data_location=1)).SerializeToString(),
    "graphs 20 deep": nested(20).SerializeToString(),
    "a size and a name": both_dimensions(),
    "a name that is not UTF-8": encoded_field(7, encoded_field(11, encoded_field(1, b"\xff"))),
    "a graph that is a number": encoded_varint(7 << 3) + encoded_varint(1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_bytes_that_can_be_read_in_two_ways_or_in_none_are_refused(name: str) -> None:
    with pytest.raises(RowpackError) as caught:
        read_onnx_interface(MALFORMED[name], where="engine.onnx")
    assert caught.value.code == "onnx_malformed"
    assert caught.value.problem.where == "engine.onnx"


def test_graphs_a_few_levels_deep_are_read() -> None:
    assert read_onnx_interface(nested(10).SerializeToString(), where="m").misplaced == ()


def test_a_model_cut_anywhere_is_read_or_refused_and_never_crashes() -> None:
    whole = model(external_tensor()).SerializeToString()
    # No reference is counted, so that the search for misplaced ones reads the whole of what there is.
    find_misplaced = partial(has_misplaced_external_data, reference_count=0)
    readers: list[Callable[..., object]] = [read_onnx_interface, external_data, find_misplaced]
    for length in range(len(whole)):
        for read in readers:
            try:
                read(whole[:length], where="m")
            except RowpackError as error:
                assert error.code == "onnx_malformed"
