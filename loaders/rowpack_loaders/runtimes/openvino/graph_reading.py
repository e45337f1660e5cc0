"""Read an ONNX section into OpenVINO with its weights left where they are mapped.

OpenVINO's ONNX reader copies external data. So each weight is first made an input of the graph (a few bytes of the
section, in memory), and the input is then replaced by a constant over the mapping. A matrix that is the left operand of
a product is read from there in every call; for one on the right the plugin packs a copy of its own when it compiles.
"""

from __future__ import annotations

import ctypes
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
    model.validate_nodes_and_infer_types()
    return model


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
