"""An engine's weights come from the weight section alone, exactly as it holds them."""

from __future__ import annotations

import pytest

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.onnx_wire import ExternalData
from rowpack_loaders.protobuf_wire import encoded_field, encoded_varint
from rowpack_loaders.safetensors_header import TensorEntry
from rowpack_loaders.weight_references import check_weight_references, reference_problems

SECTION = "weights.safetensors"
TENSORS = {"w": TensorEntry("F32", (2, 3), 4096, 24), "v": TensorEntry("F32", (2, 3), 4120, 24)}
GOOD = ExternalData("w", "float32", (2, 3), SECTION, 4096, 24)

BAD = {
    "another file": (GOOD._replace(location="other.bin"), "weight_reference_outside"),
    "an absolute path": (GOOD._replace(location="/etc/passwd"), "weight_reference_outside"),
    "a way out of the folder": (GOOD._replace(location=f"../{SECTION}"), "weight_reference_outside"),
    "the same file by another name": (GOOD._replace(location=f"./{SECTION}"), "weight_reference_outside"),
    "an address in memory": (GOOD._replace(location="*/_ORT_MEM_ADDR_/*"), "weight_reference_outside"),
    "no file": (GOOD._replace(location=""), "weight_reference_outside"),
    "prepacked data": (GOOD._replace(other_keys=("prepacked_0",)), "weight_reference_invalid"),
    "no such tensor": (GOOD._replace(name="u"), "weight_reference_unknown"),
    "the bytes of another tensor": (GOOD._replace(offset_bytes=4120), "weight_reference_mismatch"),
    "in the middle of a tensor": (GOOD._replace(offset_bytes=4100), "weight_reference_mismatch"),
    "inside the safetensors header": (GOOD._replace(offset_bytes=0), "weight_reference_mismatch"),
    "past the end of the section": (GOOD._replace(offset_bytes=2**40), "weight_reference_mismatch"),
    "past the end of a tensor": (GOOD._replace(length_bytes=48), "weight_reference_mismatch"),
    "to the end of the file": (GOOD._replace(length_bytes=None), "weight_reference_mismatch"),
    "another dtype": (GOOD._replace(dtype="int32"), "weight_reference_mismatch"),
    "another shape": (GOOD._replace(shape=(3, 2)), "weight_reference_mismatch"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_reference_to_anything_but_one_tensor_of_the_section_is_told(name: str) -> None:
    reference, code = BAD[name]
    (problem,) = reference_problems([GOOD, reference], TENSORS, weights_section=SECTION, where="engine.onnx")
    assert problem.code == code
    assert problem.where == f"engine.onnx: {reference.name}"


def test_without_a_weight_section_there_are_no_references() -> None:
    assert list(reference_problems([], {}, weights_section=None, where="m")) == []
    (problem,) = reference_problems([GOOD], {}, weights_section=None, where="m")
    assert problem.code == "weight_reference_outside"


def model_bytes(location: str, *, in_node: bool = False) -> bytes:
    """Return a model with one weight, in the wire format."""
    facts = {"location": location, "offset": "4096", "length": "24"}
    entries = [
        encoded_field(13, encoded_field(1, key.encode()) + encoded_field(2, value.encode()))
        for key, value in facts.items()
    ]
    number = [encoded_varint(field << 3) + encoded_varint(value) for field, value in ((1, 2), (1, 3), (2, 1), (14, 1))]
    tensor = b"".join([*number, encoded_field(8, b"w"), *entries])
    graph = encoded_field(1, encoded_field(5, encoded_field(5, tensor))) if in_node else encoded_field(5, tensor)
    return encoded_field(7, graph)


def test_a_model_is_refused_before_a_runtime_sees_it() -> None:
    check_weight_references(model_bytes(SECTION), TENSORS, weights_section=SECTION, where="m")
    for data, code in (
        (model_bytes("/etc/passwd"), "weight_reference_outside"),
        (model_bytes("/etc/passwd", in_node=True), "onnx_external_data_misplaced"),
        (model_bytes(SECTION, in_node=True), "onnx_external_data_misplaced"),
        (model_bytes(SECTION)[:-1], "onnx_malformed"),
    ):
        with pytest.raises(RowpackError) as caught:
            check_weight_references(data, TENSORS, weights_section=SECTION, where="m")
        assert caught.value.code == code
