"""Measure the roof over this machine: operations a second in a large float32 product, bytes a second read.

A layer of matrix products over ``rows`` rows does 2 · rows operations for each weight and reads each weight once, so it
stands at rows / 2 operations a byte in float32 and can reach min(peak, intensity · bandwidth). The product is run by
ONNX Runtime, since what this project's engines reach is to be compared with the library they run on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from read_bandwidth import measure_read_bandwidth

INNER = 4096
COLUMNS = 4096
ROWS = 512
PASSES = 8


@dataclass(frozen=True)
class MachineRoof:
    """Give the two limits."""

    operations_per_second: float
    bytes_per_second: float

    def attainable(self, operations_per_byte: float) -> float:
        """Return the operations a second that an intensity allows."""
        return min(self.operations_per_second, operations_per_byte * self.bytes_per_second)


@dataclass(frozen=True)
class RoofPoint:
    """Where some work stands: its rows, operations for each weight byte read, and operations a second."""

    label: str
    rows: int
    operations_per_byte: float
    operations_per_second: float


def measure_roof(threads: int) -> MachineRoof:
    """Return the best of a few passes of each."""
    return MachineRoof(measure_product(threads), measure_read_bandwidth(threads).bytes_per_second)


def measure_product(threads: int, rows: int = ROWS, inner: int = INNER, columns: int = COLUMNS) -> float:
    """Return the operations a second of [rows, inner] × [inner, columns] in float32, weights packed at load."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weights = np.ones((inner, columns), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((rows, inner), np.float32)}
    session.run(None, feeds)
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - start)
    return float(2 * rows * inner * columns / min(seconds))


def roof_points(
    times_ms: Sequence[tuple[str, int, float]], layer_bytes: int, head_bytes: int, chunk_rows: int
) -> list[RoofPoint]:
    """Place prompts and steps under the roof by float32 weights: each is (label, rows, milliseconds).

    The layers' weights are read once a chunk of ``chunk_rows`` and work on every row; the head works on the last row of
    a prompt only.
    """
    points = []
    for label, rows, milliseconds in times_ms:
        chunks = -(-rows // chunk_rows)
        operations = (2 * rows * layer_bytes + 2 * head_bytes) / 4
        read_bytes = chunks * layer_bytes + head_bytes
        points.append(RoofPoint(label, rows, operations / read_bytes, operations / milliseconds * 1e3))
    return points


def narrow_step(label: str, milliseconds: float, float32_bytes: int, read_bytes: int) -> RoofPoint:
    """Place a step with weights of ``read_bytes`` under the roof: the operations are those of the float32 weights."""
    operations = 2 * float32_bytes / 4
    return RoofPoint(label, 1, operations / read_bytes, operations / milliseconds * 1e3)
