"""Products whose weights are not what they say are refused before a runtime packs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper
from test_block_projections import Projection, forms

from rowpack_loaders.block_products import block_product_problems, check_block_products
from rowpack_loaders.errors import RowpackError

Change = Callable[[onnx.ModelProto], object]


def attribute(model: onnx.ModelProto, name: str, value: int) -> None:
    """Set an attribute of the product."""
    next(entry for entry in model.graph.node[0].attribute if entry.name == name).i = value


def shape(model: onnx.ModelProto, name: str, *dims: int) -> None:
    """Give an initializer another shape."""
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    del tensor.dims[:]
    tensor.dims.extend(dims)


def dtype(model: onnx.ModelProto, name: str, number: int) -> None:
    """Give an initializer another element type."""
    next(tensor for tensor in model.graph.initializer if tensor.name == name).data_type = number


def hide_in_a_function(model: onnx.ModelProto) -> None:
    """Move the product where nobody looks."""
    node = onnx.NodeProto()
    node.CopyFrom(model.graph.node[0])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model.functions.append(helper.make_function("other", "hidden", ["x"], ["out_0"], [node], imports))


HOSTILE: dict[str, Change] = {
    "more rows than there are": lambda model: attribute(model, "N", 4096),
    "more columns than there are": lambda model: attribute(model, "K", 192 * 64),
    "columns that are no whole blocks": lambda model: attribute(model, "K", 191),
    "no columns": lambda model: attribute(model, "K", 0),
    "a negative count": lambda model: attribute(model, "N", -1),
    "a count past 32 bits": lambda model: attribute(model, "N", 2**40),
    "other bits": lambda model: attribute(model, "bits", 8),
    "three bits": lambda model: attribute(model, "bits", 3),
    "another block size": lambda model: attribute(model, "block_size", 16),
    "an unknown block size": lambda model: attribute(model, "block_size", 24),
    "no attributes": lambda model: model.graph.node[0].ClearField("attribute"),
    "codes of another shape": lambda model: shape(model, "weight", 40, 3, 32),
    "fewer scales": lambda model: shape(model, "scales", 39, 6),
    "scales of another type": lambda model: dtype(model, "scales", onnx.TensorProto.FLOAT16),
    "fewer zero points": lambda model: shape(model, "zero_points", 40, 1),
    "weights that are computed": lambda model: model.graph.node[0].input.__setitem__(1, "x"),
    "no zero points": lambda model: model.graph.node[0].input.pop(),
    "a reordering of columns": lambda model: model.graph.node[0].input.append("scales"),
    "another domain": lambda model: setattr(model.graph.node[0], "domain", "elsewhere"),
    "a product in a function": hide_in_a_function,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_product_is_refused(tmp_path: Path, name: str) -> None:
    model = Projection(tmp_path, 4).engine()
    HOSTILE[name](model)
    data = model.SerializeToString()
    with pytest.raises(RowpackError) as caught:
        check_block_products(data, where="engine.onnx")
    assert caught.value.code == "block_product_invalid"
    assert {problem.code for problem in block_product_problems(data, where="engine.onnx")} == {"block_product_invalid"}


@forms
def test_our_own_are_accepted(tmp_path: Path, bits: int, columns: int, block: int) -> None:
    check_block_products(Projection(tmp_path, bits, columns).engine().SerializeToString(), where="engine.onnx")


def test_a_graph_without_such_products_is_not_looked_at() -> None:
    assert list(block_product_problems(b"no model at all", where="engine.onnx")) == []
