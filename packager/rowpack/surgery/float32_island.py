"""Widen what enters a float32 part of the graph."""

from __future__ import annotations

import numpy as np

from rowpack.graph.dtypes import onnx_type
from rowpack.graph.emitter import Emitter, Tensor


def widened(emitter: Emitter, tensor: Tensor, name: str) -> Tensor:
    """Emit a cast to float32 unless the tensor is declared float32 or made from float32 tensors only."""
    declared = [tensor] if tensor.dtype is not None else list(tensor.inputs[0].inputs)
    if all(part.dtype in (np.float32, onnx_type("float32")) for part in declared):
        return tensor
    return emitter.cast(tensor, "float32", f"{name}_float32")
