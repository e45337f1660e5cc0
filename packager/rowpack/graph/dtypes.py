"""Names of element types: the manifest's words, ONNX's numbers, NumPy's types, safetensors' codes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from rowpack_loaders.errors import RowpackError

_ONNX = {
    "float32": int(TensorProto.FLOAT),
    "float16": int(TensorProto.FLOAT16),
    "bfloat16": int(TensorProto.BFLOAT16),
    "float8_e4m3fn": int(TensorProto.FLOAT8E4M3FN),
    "float4_e2m1fn": int(TensorProto.FLOAT4E2M1),
    "int8": int(TensorProto.INT8),
    "uint8": int(TensorProto.UINT8),
    "uint4": int(TensorProto.UINT4),
    "int32": int(TensorProto.INT32),
    "int64": int(TensorProto.INT64),
    "bool": int(TensorProto.BOOL),
}
_NUMPY: dict[str, Any] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float4_e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}
_SAFETENSORS = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float4_e2m1fn": "F4",
    "uint8": "U8",
    # The format has no four-bit integers: they are stored as the bytes that hold two of them.
    "uint4": "U8",
}

_PACKED = ("float4_e2m1fn", "uint4")
"""Types of which two elements share a byte when they are stored; in memory NumPy gives each a byte of its own."""

WORK_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The element type of projections, residual stream and caches for each ``--precision``."""


def work_dtype(precision: str) -> str:
    """Return the element type of ``precision`` (``fp32``, ``fp16``, ``bf16``)."""
    try:
        return WORK_DTYPES[precision]
    except KeyError:
        raise RowpackError(
            "precision_unknown",
            "the precision is not one rowpack knows",
            found=repr(precision),
            expected=", ".join(WORK_DTYPES),
            remedy="Choose one with --precision.",
        ) from None


def onnx_type(dtype: str) -> int:
    """Return ONNX's number of ``dtype``."""
    return _ONNX[dtype]


def dtype_name(onnx_number: int) -> str:
    """Return the manifest's word for ONNX's element type ``onnx_number``."""
    for name, number in _ONNX.items():
        if number == onnx_number:
            return name
    return str(TensorProto.DataType.Name(onnx_number)).lower()


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return NumPy's type of ``dtype`` (ml_dtypes' for bfloat16)."""
    result: np.dtype[Any] = _NUMPY[dtype]
    return result


def safetensors_code(dtype: str) -> str:
    """Return the code that a safetensors header uses for ``dtype``."""
    return _SAFETENSORS[dtype]


def byte_width(dtype: str) -> int:
    """Return the bytes of one element of ``dtype``."""
    return int(numpy_dtype(dtype).itemsize)


def stored_bits(dtype: str) -> int:
    """Return the bits that one stored element of ``dtype`` takes."""
    return 4 if dtype in _PACKED else 8 * byte_width(dtype)


def stored_values(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return the bytes of ``values`` (of ``dtype``, contiguous) as they are stored.

    Of two elements that share a byte the first is in the low half, in ONNX and in safetensors alike.
    """
    codes: np.ndarray[Any, Any] = values.reshape(-1).view(np.uint8)
    if dtype not in _PACKED:
        return codes
    packed: np.ndarray[Any, Any] = (codes[0::2] & 0xF) | (codes[1::2] << 4)
    return packed
