"""One walk over a model's bytes: what it steps over, what it remembers, and that nobody walks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from rowpack_loaders import onnx_wire
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.onnx_wire import ReadModel, external_data, relocate_external_data, weights_as_inputs
from rowpack_loaders.protobuf_wire import Message, encoded_field, encoded_varint, fields, messages_among, text_pair

PARTS = st.lists(
    st.one_of(
        st.builds(encoded_field, st.integers(1, 40), st.binary(max_size=300)),
        st.builds(
            lambda number, value: encoded_varint(number << 3) + encoded_varint(value),
            st.integers(1, 40),
            st.integers(0, 2**64 - 1),
        ),
        st.builds(lambda number: encoded_varint(number << 3 | 5) + bytes(4), st.integers(1, 40)),
        st.binary(max_size=3),
    ),
    max_size=8,
).map(b"".join)


def outcome(read: Callable[[], Iterator[object]]) -> tuple[list[object], bool]:
    """Return what is yielded, and whether it ends with a refusal."""
    found: list[object] = []
    try:
        found.extend(read())
    except RowpackError as error:
        assert error.code == "onnx_malformed"
        return [], True
    return found, False


@given(PARTS)
@example(b"\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\x2a\x80\x01")
@example(b"\x28\x07")
@example(b"\x2a\x80\x00")
@example(b"\x2a")
def test_stepping_over_fields_finds_what_reading_each_of_them_finds(data: bytes) -> None:
    view = memoryview(data)

    def every_field() -> Iterator[object]:
        Message(view, "m")
        for number, value, start, end in fields(view, "m"):
            if number == 5:
                if isinstance(value, int):
                    raise RowpackError("onnx_malformed", "a number")
                yield bytes(value), start, end

    def only_wanted() -> Iterator[object]:
        for content, start, end in messages_among(view, 5, "m"):
            yield bytes(content), start, end

    assert outcome(only_wanted) == outcome(every_field)


@given(
    st.one_of(
        PARTS, st.builds(lambda key, text: encoded_field(1, key) + encoded_field(2, text), st.binary(), st.binary())
    )
)
def test_a_pair_of_texts_is_what_its_fields_say(data: bytes) -> None:
    def by_fields() -> Iterator[object]:
        pair = Message(memoryview(data), "m")
        yield pair.text(1), pair.text(2)

    def at_once() -> Iterator[object]:
        yield text_pair(memoryview(data), "m")

    assert outcome(at_once) == outcome(by_fields)


def model(count: int = 3) -> onnx.ModelProto:
    """Return a model with external weights, constants of its own between them, and nodes before and after."""
    initializers = []
    for index in range(count):
        tensor = TensorProto(
            name=f"weight {index} ü", data_type=TensorProto.BFLOAT16, dims=[300, index], data_location=1
        )
        for key, value in {
            "location": "weights.safetensors",
            "offset": str(8 + index),
            "length": str(600 * index),
        }.items():
            tensor.external_data.add(key=key, value=value)
        initializers += [tensor, numpy_helper.from_array(np.arange(200), f"constant {index}")]
    nodes = [helper.make_node("Identity", [f"weight {index} ü"], [f"out {index}"]) for index in range(count)]
    graph = helper.make_graph(nodes, "g" * 200, [], [], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "relocation": lambda data: relocate_external_data(data, "x" * 300, 2**40, where="m"),
    "inputs": lambda data: weights_as_inputs(data, where="m"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_was_read_is_changed_as_its_bytes_are_without_another_walk(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = model().SerializeToString()
    changed = CHANGES[name](data)
    onnx.ModelProto.FromString(changed)
    assert len(changed) != len(data)
    read = ReadModel.of(data, where="m")
    assert read == data

    def walk(*_: object) -> None:
        raise AssertionError("walked again")

    monkeypatch.setattr(onnx_wire, "messages_among", walk)
    assert CHANGES[name](read) == changed
    with pytest.raises(AssertionError, match="walked again"):
        CHANGES[name](data)


def test_relocated_tensors_keep_their_type_name_and_shape() -> None:
    data = model().SerializeToString()
    moved = onnx.ModelProto.FromString(relocate_external_data(data, "b.bundle", 4096, where="m"))
    expected = model()
    for index, tensor in enumerate(expected.graph.initializer[::2]):
        tensor.external_data[0].value = "b.bundle"
        tensor.external_data[1].value = str(8 + index + 4096)
    assert moved == expected


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_without_references_or_graph_stays_as_it_is(name: str) -> None:
    for data in (model(0).SerializeToString(), b""):
        assert CHANGES[name](data) == data


def test_a_type_without_a_name_keeps_its_number() -> None:
    built = model(1)
    built.graph.initializer[0].data_type = 77
    moved = relocate_external_data(built.SerializeToString(), "b", 1, where="m")
    assert external_data(moved, where="m")[0].dtype == "type 77"
    assert onnx.ModelProto.FromString(moved).graph.initializer[0].data_type == 77


def test_two_graphs_are_refused() -> None:
    data = model(1).SerializeToString()
    with pytest.raises(RowpackError) as refused:
        ReadModel.of(data + data, where="m")
    assert refused.value.code == "onnx_malformed"
