"""Read an ONNX section into OpenVINO with its weights left where they are mapped.

OpenVINO's ONNX reader copies external data. So each weight is first made an input of the graph (a few bytes of the
section, in memory), and the input is then replaced by a constant over the mapping. A matrix that is the left operand of
a product is read from there in every call; for one on the right the plugin packs a copy of its own when it compiles.

The reader makes three operators of a Gemm without bias: product, times alpha, plus beta times zero. The plugin would
fold the factor 1 into the weights, which takes it a copy of all of them and, in bfloat16, twenty seconds for 1.5 GB.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rowpack_loaders.onnx_wire import external_data, weights_as_inputs
from rowpack_loaders.runtimes.openvino.library import import_openvino
from rowpack_loaders.weights import WeightView

openvino = import_openvino()

_VIEWED_AS_INTEGERS = {"BF16": openvino.Type.bf16}


def read_graph(core: Any, onnx_bytes: bytes, weights: Mapping[str, WeightView], *, where: str) -> Any:
    """Return the ``openvino.Model`` of a section whose weight references were checked against ``weights``.

    OpenVINO keeps addresses: the views must outlive everything made from the model. Raises ``onnx_malformed`` and
    whatever OpenVINO raises.
    """
    names = {reference.name for reference in external_data(onnx_bytes, where=where)}
    model = core.read_model(weights_as_inputs(onnx_bytes, where=where) if names else onnx_bytes)
    for parameter in model.get_parameters():
        name = parameter.get_friendly_name()
        if name not in names:
            continue
        constant = openvino.op.Constant(tensor_over(weights[name]), shared_memory=True)
        constant.set_friendly_name(name)
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(constant.output(0))
        model.remove_parameter(parameter)
    for product in [node for node in model.get_ops() if node.get_type_name() == "MatMul"]:
        _drop_neutral_scaling(product)
    model.validate_nodes_and_infer_types()
    return model


def _drop_neutral_scaling(product: Any) -> None:
    """Let what reads a product times one plus zero, as a Gemm is read, read the product."""
    scaled = _only_reader(product, "Multiply")
    if scaled is None or _scalar(_other_input(scaled, product)) != 1.0:
        return
    biased = _only_reader(scaled, "Add")
    if biased is not None and _scalar(_other_input(biased, scaled)) == 0.0:
        biased.output(0).replace(product.output(0))


def _only_reader(node: Any, kind: str) -> Any | None:
    """Return the node that reads ``node`` if it is the only one and of this kind."""
    readers = list(node.output(0).get_target_inputs())
    reader = readers[0].get_node() if len(readers) == 1 else None
    return reader if reader is not None and reader.get_type_name() == kind else None


def _other_input(node: Any, operand: Any) -> Any:
    """Return the node of the other input of a node with two."""
    first, second = (entry.get_source_output().get_node() for entry in node.inputs())
    return second if first.get_friendly_name() == operand.get_friendly_name() else first


def _scalar(node: Any) -> float | None:
    """Return the value of a constant of one element, or of a product of such constants; None for anything else."""
    if node.get_type_name() == "Multiply":
        first, second = (_scalar(entry.get_source_output().get_node()) for entry in node.inputs())
        return None if first is None or second is None else first * second
    if node.get_type_name() != "Constant" or math.prod(node.get_output_shape(0)) != 1:
        return None
    return float(node.get_value_strings()[0])


def tensor_over(view: WeightView) -> Any:
    """Return a tensor over a mapped weight, without copying.

    The mapping is read-only, which a tensor cannot express; constants are only read.
    """
    mapped = view.array
    block = (ctypes.c_char * mapped.nbytes).from_address(mapped.ctypes.data)
    array = np.frombuffer(memoryview(block), dtype=mapped.dtype).reshape(mapped.shape)
    if view.dtype in _VIEWED_AS_INTEGERS:
        return openvino.Tensor(array, list(mapped.shape), _VIEWED_AS_INTEGERS[view.dtype])
    return openvino.Tensor(array, shared_memory=True)
