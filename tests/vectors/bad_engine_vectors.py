"""Vectors about ONNX sections: where their weights are said to lie, and what they declare."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from bad_vector import SINGLE, VectorList
from forged_bundles import bent
from onnx import TensorProto, helper
from synthetic_bundles import BundleParts
from tiny_engines import engine_section

VECTORS = VectorList()


def with_graph(change: Callable[[onnx.ModelProto], object]) -> bytes:
    """Return the good single bundle with its graph changed and every digest right."""
    model = onnx.ModelProto.FromString(engine_section("decode"))
    change(model)
    return with_section(model.SerializeToString(deterministic=True))


def with_section(section: bytes) -> bytes:
    """Return the good single bundle with another engine section."""
    return bent(lambda parts: parts.sections.update({"engine.onnx": section}), "single")


def placed(**entries: str) -> Callable[[onnx.ModelProto], None]:
    """Return a change of the first weight's external data."""

    def change(model: onnx.ModelProto) -> None:
        data = model.graph.initializer[0].external_data
        facts = {entry.key: entry.value for entry in data} | entries
        del data[:]
        for key, value in facts.items():
            data.add(key=key, value=value)

    return change


def hidden_tensor(location: str) -> TensorProto:
    """Return a constant that takes its one number from elsewhere."""
    tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant_from(location: str) -> Callable[[onnx.ModelProto], None]:
    """Return a change that hides a constant in a node."""
    node = helper.make_node("Constant", [], ["hidden"], value=hidden_tensor(location))
    return lambda model: model.graph.node.append(node)


def constant_in_subgraph(model: onnx.ModelProto) -> None:
    """Hide a constant in a graph inside a node."""
    branch = helper.make_graph([], "branch", [], [], [hidden_tensor("/etc/passwd")])
    model.graph.node.append(helper.make_node("If", ["one"], [], then_branch=branch, else_branch=branch))


def constant_in_function(model: onnx.ModelProto) -> None:
    """Hide a constant in a function."""
    node = helper.make_node("Constant", [], ["c"], value=hidden_tensor("/etc/passwd"))
    opset = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("tests", "Hidden", [], ["c"], [node], opset))


def twice(model: onnx.ModelProto) -> None:
    """Name a file a second time; protobuf libraries differ in which they take."""
    model.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def inline_too(model: onnx.ModelProto) -> None:
    """Say that the weight is here and elsewhere."""
    model.graph.initializer[0].data_location = TensorProto.DEFAULT


def typed(dtype: int) -> Callable[[onnx.ModelProto], None]:
    """Return a change of the first weight's dtype."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].data_type = dtype

    return change


def cache_input_renamed(model: onnx.ModelProto) -> None:
    """Give an input another name than the manifest says."""
    model.graph.input[4].name = "k_cache_0"


def state_input_widened(model: onnx.ModelProto) -> None:
    """Give an input another size than the manifest says."""
    model.graph.input[3].type.tensor_type.shape.dim[0].dim_value = 600


def add_references() -> None:
    """Add graphs that take data from elsewhere than the weight section."""
    outside = {
        "absolute-path": "/etc/passwd",
        "parent-folder": "../../secret.bin",
        "other-file": "other.safetensors",
        "same-file-otherwise": "./weights.safetensors",
        "device": "/dev/zero",
        "url": "file:///etc/passwd",
        "memory-address": "*/_ORT_MEM_ADDR_/*",
        "empty": "",
    }
    for name, location in outside.items():
        what = f"A weight lies in {location!r}."
        code = "weight_reference_outside"
        VECTORS.invalid(
            f"external-data-{name}", (code,), what, with_graph(placed(location=location)), load=code, base=SINGLE
        )
    wrong = {
        "past-the-section": (placed(offset="1000000"), "bytes far behind the section"),
        "past-the-file": (placed(offset="9223372036854775807"), "bytes 2^63 into it"),
        "inside-the-header": (placed(offset="0"), "the bytes of the safetensors header"),
        "between-tensors": (placed(offset="4100"), "bytes that start inside one tensor and end in the next"),
        "longer-than-the-tensor": (placed(length="288"), "more bytes than the tensor has"),
        "of-another-dtype": (typed(TensorProto.INT32), "the same bytes as another dtype"),
    }
    for name, (change, what) in wrong.items():
        code = "weight_reference_mismatch"
        VECTORS.invalid(
            f"external-data-{name}", (code,), f"A weight is {what}.", with_graph(change), load=code, base=SINGLE
        )
    hidden: dict[str, Callable[[onnx.ModelProto], None]] = {
        "in-a-node": constant_from("/etc/passwd"),
        "in-a-node-of-our-file": constant_from("weights.safetensors"),
        "in-a-subgraph": constant_in_subgraph,
        "in-a-function": constant_in_function,
    }
    for name, change in hidden.items():
        errors = ("onnx_external_data_misplaced",)
        what = "Data from elsewhere where no loader looks for references."
        VECTORS.invalid(f"external-data-{name}", errors, what, with_graph(change), load=errors[0], base=SINGLE)
    malformed: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
        "location-twice": (twice, "A weight names two files."),
        "and-inline": (inline_too, "A weight is here and elsewhere."),
        "offset-negative": (placed(offset="-1"), "A negative offset."),
        "offset-hexadecimal": (placed(offset="0x10"), "An offset that is no decimal number."),
    }
    for name, (change, what) in malformed.items():
        code = "onnx_malformed"
        VECTORS.invalid(f"external-data-{name}", (code,), what, with_graph(change), load=code, base=SINGLE)
    VECTORS.invalid(
        "external-data-key-unknown",
        ("weight_reference_invalid",),
        "A weight says that it lies packed elsewhere in the file.",
        with_graph(placed(prepacked_0="key|0|4|0")),
        load="weight_reference_invalid",
        base=SINGLE,
    )


def add_graphs() -> None:
    """Add graphs that are none, or that declare something else than the manifest."""
    whole = engine_section("decode")
    texts = {
        "text": b"decode graph",
        "cut": whole[:-1],
        "empty": b"",
        "length-past-the-end": b"\x3a\xff\xff\xff\xff\x0f" + whole,
        "endless-number": b"\x08" + b"\xff" * 20,
        "graph-twice": whole + b"\x3a\x00",
    }
    for name, section in texts.items():
        code = "onnx_malformed"
        load = code if name != "empty" else "engine_load_failed"
        VECTORS.invalid(
            f"engine-{name}",
            (code,),
            "The engine is not one ONNX model.",
            with_section(section),
            load=load,
            base=SINGLE,
        )
    changes = {
        "input-renamed": (cache_input_renamed, "An input has another name than the manifest says."),
        "input-of-another-size": (state_input_widened, "An input has another size than the manifest says."),
    }
    for name, (change, what) in changes.items():
        errors = ("onnx_tensor_mismatch",)
        VECTORS.invalid(f"engine-{name}", errors, what, with_graph(change), load="engine_load_failed", base=SINGLE)
    VECTORS.invalid(
        "engine-operators-unannounced",
        ("onnx_domain_unannounced",),
        "Operators of a vendor that the manifest says nothing of.",
        with_graph(lambda model: model.opset_import.append(helper.make_opsetid("com.microsoft", 1))),
        base=SINGLE,
    )

    def other_opset(parts: BundleParts) -> None:
        parts.manifest["engines"]["decode"]["opset"] = 7

    VECTORS.invalid(
        "engine-opset-wrong",
        ("onnx_version_mismatch",),
        "The manifest names another opset.",
        bent(other_opset, "single"),
        base=SINGLE,
    )


add_references()
add_graphs()
