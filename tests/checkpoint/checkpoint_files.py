"""Write the small files of a checkpoint; the tests' own, independent of what the project writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray[Any, Any]]
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
LFS_POINTER = "version https://git-lfs.example/spec/v1\noid sha256:{}\nsize 123456789\n".format("0" * 64)

_DTYPE_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "bfloat16": "BF16", "int64": "I64"}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file as its specification says, unpadded."""
    header: dict[str, Any] = {}
    offset = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
