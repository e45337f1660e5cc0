"""Run a small graph, to find out what the installed ONNX Runtime does with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rowpack_loaders.onnx_encoding import model
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime

Array = np.ndarray[Any, Any]

onnxruntime = import_onnxruntime()


def run_trial(content: bytes, output: str, inputs: Mapping[str, Array]) -> Array:
    """Return ``output`` of the graph with this content, with one thread and as a bundle's graphs are run."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model(content), options, providers=["CPUExecutionProvider"])
    result: Array = session.run([output], dict(inputs))[0]
    return result
