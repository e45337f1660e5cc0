"""Tell whether the installed ONNX Runtime multiplies whole numbers exactly on this processor.

Where there are no instructions that add products of bytes by signed bytes to 32 bits (VNNI, AMX), it adds two of them
to 16 bits first, which saturates. Up to 1.24 it computes something else with AMX for 17 to 31 rows, 49 to 63, and so
on (so found with 1.23.2 and 1.24.4; not with 1.25.1 and 1.32.0). Either way logits would be wrong without a word, so
that is tried, once a process, with the largest numbers there are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rowpack_loaders.block_products import DOMAIN
from rowpack_loaders.errors import RowpackError
from rowpack_loaders.onnx_encoding import graph, node, tensor
from rowpack_loaders.onnx_wire import GRAPH_INPUT, GRAPH_OUTPUT, value_info
from rowpack_loaders.protobuf_wire import encoded_field
from rowpack_loaders.row_products import OPERATOR
from rowpack_loaders.runtimes.onnxruntime_import import import_onnxruntime
from rowpack_loaders.runtimes.ort_trial import run_trial

Array = np.ndarray[Any, Any]

onnxruntime = import_onnxruntime()

_FLOAT, _BYTES, _SIGNED_BYTES = 1, 2, 3
_ROWS, _COLUMNS, _WIDTH = (1, 31, 64), 256, 48
_MIDDLE = 128

RESULT = "products"
"""The output of :func:`one_product`."""


def check_row_products(where: str) -> None:
    """Raise ``cpu_feature_missing`` where products of the engine ``where`` would not be exact."""
    if not multiplies_exactly():
        raise RowpackError(
            "cpu_feature_missing",
            "The bundle's products in whole numbers are not exact on this processor",
            where=where,
            found=f"ONNX Runtime {onnxruntime.__version__} gives other sums here",
            expected="ONNX Runtime 1.25.1 or newer on a processor with avx512_vnni, avx_vnni or amx_int8",
            remedy="Update ONNX Runtime, run it on such a processor, or build with --quantization int8",
        )


@cache
def multiplies_exactly() -> bool:
    """Tell whether a product of the largest bytes by the largest signed bytes is right, with one row and with more."""
    weights = np.full((_WIDTH, _COLUMNS), 255, np.uint8)
    weights[1::3] = 0
    weights[2::3, ::2] = 129
    for rows in _ROWS:
        codes = np.full((_COLUMNS, rows), 127, np.int8)
        codes[::5] = -128
        exact = (weights.astype(np.int64) - _MIDDLE) @ codes.astype(np.int64)
        found = run_trial(one_product(weights, rows), RESULT, {"codes": codes})
        if not np.array_equal(found, exact.astype(np.float32)):
            return False
    return True


def one_product(weights: Array, rows: int) -> bytes:
    """Return the content of a graph that multiplies uint8 ``weights`` [width, columns] by ``codes`` [columns, rows]."""
    width, columns = weights.shape
    initializers = [
        tensor(_BYTES, weights.shape, name="weights", data=weights.tobytes()),
        tensor(_FLOAT, (), name="step", data=np.float32(1).tobytes()),
        tensor(_FLOAT, (rows,), name="scales", data=np.ones(rows, np.float32).tobytes()),
        tensor(_BYTES, (), name="middle", data=bytes((_MIDDLE,))),
    ]
    product = node(OPERATOR, ["weights", "codes", "step", "scales", "middle"], [RESULT], domain=DOMAIN)
    declared = [
        encoded_field(GRAPH_INPUT, value_info("codes", _SIGNED_BYTES, (columns, rows))),
        encoded_field(GRAPH_OUTPUT, value_info(RESULT, _FLOAT, (width, rows))),
    ]
    return graph("a product of whole numbers", [product, *declared], initializers=initializers)
