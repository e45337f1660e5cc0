"""Every rule about ONNX sections, with the input that breaks it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import onnx
import pytest
from onnx import TensorProto, helper
from rule_breaches import Breach, Breaches, assert_breach_is_told
from synthetic_bundles import BundleParts
from tiny_engines import engine_section, weights_section

from rowpack_loaders import RowpackError, load
from rowpack_loaders.safetensors_header import LENGTH_BYTES, build_header, parse_header
from rowpack_loaders.validation.runner import LAYERS

BREACHES = Breaches()


def changed(parts: BundleParts, change: Callable[[onnx.ModelProto], object], use: str = "decode") -> None:
    """Change the graph of one engine."""
    model = onnx.ModelProto.FromString(engine_section(use))
    change(model)
    parts.sections["engine.onnx" if use == "decode" else "prefill.onnx"] = model.SerializeToString()


def place_of(model: onnx.ModelProto, key: str) -> onnx.StringStringEntryProto:
    """Return an entry of the first weight's external data."""
    return next(entry for entry in model.graph.initializer[0].external_data if entry.key == key)


@BREACHES.bent("onnx_sections_are_read", "onnx_malformed")
def _(parts: BundleParts) -> None:
    parts.sections["engine.onnx"] = b"decode graph"


@BREACHES.bent("onnx_digests_match_sections", "onnx_digest_mismatch")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["onnx_sha256"] = "1" * 64


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="name")
def _(parts: BundleParts) -> None:
    def rename(model: onnx.ModelProto) -> None:
        model.graph.input[4].name = "k_cache_0"

    changed(parts, rename)


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="order")
def _(parts: BundleParts) -> None:
    changed(parts, lambda model: model.graph.output.append(model.graph.output.pop(0)))


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="dtype")
def _(parts: BundleParts) -> None:
    def halve(model: onnx.ModelProto) -> None:
        model.graph.input[3].type.tensor_type.elem_type = TensorProto.FLOAT16

    changed(parts, halve, "prefill")


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="shape")
def _(parts: BundleParts) -> None:
    def widen(model: onnx.ModelProto) -> None:
        model.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 7

    changed(parts, widen)


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="free size")
def _(parts: BundleParts) -> None:
    def rename(model: onnx.ModelProto) -> None:
        model.graph.input[4].type.tensor_type.shape.dim[0].dim_param = "rows"

    changed(parts, rename)


@BREACHES.bent("onnx_tensors_match_manifest", "onnx_tensor_mismatch", label="no shape")
def _(parts: BundleParts) -> None:
    changed(parts, lambda model: model.graph.input[0].type.tensor_type.ClearField("shape"))


@BREACHES.bent("onnx_versions_match_manifest", "onnx_version_mismatch", label="opset")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["opset"] = 21


@BREACHES.bent("onnx_versions_match_manifest", "onnx_version_mismatch", label="IR version")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["ir_version"] = 9


@BREACHES.bent("onnx_domains_are_announced", "onnx_domain_unannounced")
def _(parts: BundleParts) -> None:
    changed(parts, lambda model: model.opset_import.append(helper.make_opsetid("com.microsoft", 1)))


def with_fused_norm(model: onnx.ModelProto) -> None:
    """Let the graph use an operator of a vendor, whose output nobody reads."""
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node.append(helper.make_node("QuickGelu", ["logits"], ["unread"], domain="com.microsoft"))


@BREACHES.bent("onnx_operators_match_requirements", "onnx_requirements_mismatch", label="another operator")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["requires"] = ["com.microsoft.FastGelu"]
    changed(parts, with_fused_norm)


@BREACHES.bent("onnx_operators_match_requirements", "onnx_requirements_mismatch", label="no operator")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["prefill"]["requires"] = ["com.microsoft.QuickGelu"]


@BREACHES.bent("onnx_operators_match_requirements", "onnx_requirements_mismatch", label="one operator less")
def _(parts: BundleParts) -> None:
    parts.manifest["engines"]["decode"]["requires"] = ["com.microsoft.QuickGelu"]

    def nested(model: onnx.ModelProto) -> None:
        """An operator counts wherever it is: here in a branch of another node."""
        with_fused_norm(model)
        inner = helper.make_node("FastGelu", ["logits"], ["also_unread"], domain="com.microsoft")
        branch = helper.make_graph([inner], "branch", [], [])
        model.graph.node.append(helper.make_node("If", ["zero"], ["either"], then_branch=branch, else_branch=branch))

    changed(parts, nested)


@BREACHES.bent("block_products_are_sound", "block_product_invalid", "onnx_domain_unannounced")
def _(parts: BundleParts) -> None:
    def add_product(model: onnx.ModelProto) -> None:
        sizes = {"K": 64, "N": 2**20, "bits": 4, "block_size": 32}
        inputs = ["x", model.graph.initializer[0].name, "scales", "zero_points"]
        model.graph.node.append(helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes))
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    changed(parts, add_product)


@BREACHES.bent("initializers_are_no_inputs", "onnx_initializer_shadowed", "onnx_tensor_mismatch")
def _(parts: BundleParts) -> None:
    value = helper.make_tensor_value_info("embed.weight", TensorProto.FLOAT, [16, 4])
    changed(parts, lambda model: model.graph.input.append(value))


@BREACHES.bent("weight_references_are_inside", "weight_reference_outside", label="absolute path")
def _(parts: BundleParts) -> None:
    parts.sections["engine.onnx"] = engine_section("decode", location="/etc/passwd")


@BREACHES.bent("weight_references_are_inside", "weight_reference_mismatch", label="past the end")
def _(parts: BundleParts) -> None:
    def move(model: onnx.ModelProto) -> None:
        place_of(model, "offset").value = str(2**40)

    changed(parts, move)


@BREACHES.bent("weight_references_are_inside", "weight_reference_mismatch", label="another tensor")
def _(parts: BundleParts) -> None:
    def move(model: onnx.ModelProto) -> None:
        place_of(model, "offset").value = "4100"

    changed(parts, move)


@BREACHES.bent("weight_references_are_inside", "onnx_external_data_misplaced", label="in a node")
def _(parts: BundleParts) -> None:
    def hide(model: onnx.ModelProto) -> None:
        constant = TensorProto(name="c", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
        constant.external_data.add(key="location", value="/etc/passwd")
        model.graph.node.append(helper.make_node("Constant", [], ["c"], value=constant))

    changed(parts, hide)


@BREACHES.bent("weight_references_are_inside", "weight_reference_outside", label="no weight section")
def _(parts: BundleParts) -> None:
    parts.without = {"weights.safetensors"}
    parts.manifest["weights"] = None


@BREACHES.bent("every_weight_is_used", "weight_unreferenced")
def _(parts: BundleParts) -> None:
    whole = weights_section()
    tensors = [(name, entry.dtype, entry.shape) for name, entry in parse_header(whole, where="w").items()]
    start = LENGTH_BYTES + int.from_bytes(whole[:8], "little")
    parts.sections["weights.safetensors"] = (
        build_header([*tensors, ("hidden.weight", "F32", (2,))]) + whole[start:] + bytes(8)
    )
    parts.manifest["weights"] = {"section": "weights.safetensors", "tensor_count": 3, "tensor_bytes": 296}
    parts.manifest["layout_decision"]["weight_bytes"] = 296


@pytest.mark.parametrize("case", BREACHES, ids=str)
def test_a_broken_rule_is_reported_and_nothing_else(case: Breach, tmp_path: Path) -> None:
    assert_breach_is_told(case, tmp_path / "broken.bundle")


def test_every_rule_has_an_input_that_breaks_it() -> None:
    rules = {rule.__name__ for layer in LAYERS if layer.name == "onnx" for rule in layer.rules}
    assert rules == {case.rule for case in BREACHES}


def test_the_parts_are_a_model_that_runs(tmp_path: Path) -> None:
    parts = BundleParts()
    parts.write(tmp_path / "x.bundle")
    (case,) = parts.golden["cases"]
    with load(tmp_path / "x.bundle") as decoder:
        ways: tuple[Literal["chunked", "token-loop"], ...] = ("chunked", "token-loop")
        for prefill in ways:
            run = decoder.generate(case["prompt_ids"], 2, prefill=prefill, stop_token_ids=[])
            assert list(run.token_ids) == case["greedy_ids"]


@pytest.mark.parametrize("case", [case for case in BREACHES if case.rule == "weight_references_are_inside"], ids=str)
def test_bad_references_are_refused_at_load_too(case: Breach, tmp_path: Path) -> None:
    case.write(tmp_path / "broken.bundle")
    with pytest.raises(RowpackError) as caught:
        load(tmp_path / "broken.bundle")
    assert {caught.value.code} == case.codes
