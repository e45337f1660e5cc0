"""Write one file of random tensors, as safetensors or in torch's zip format, a block at a time."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rowpack.checkpoint.tensors import row_major_strides
from rowpack.synthesis.random_values import NUMPY_DTYPES, RandomTensor, StoredDtype, stream_values
from rowpack_loaders.safetensors_header import build_header

WroteBytes = Callable[[int], None]
"""Is told the number of tensor bytes of each block once it is written."""

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_STORAGE_CLASSES: dict[StoredDtype, str] = {
    "BF16": "BFloat16Storage",
    "F16": "HalfStorage",
    "F32": "FloatStorage",
}


def write_safetensors(
    path: Path, tensors: Sequence[RandomTensor], dtype: StoredDtype, seed: int, wrote: WroteBytes
) -> None:
    """Write the tensors as one safetensors file with the metadata transformers asks for."""
    header = build_header([(tensor.name, dtype, tensor.shape) for tensor in tensors], metadata={"format": "pt"})
    with path.open("xb") as file:
        file.write(header)
        for tensor in tensors:
            for block in stream_values(tensor, dtype, seed):
                file.write(block)
                wrote(block.nbytes)


def write_torch(path: Path, tensors: Sequence[RandomTensor], dtype: StoredDtype, seed: int, wrote: WroteBytes) -> None:
    """Write the tensors as ``torch.save`` writes a state dict: a zip of a pickle and one entry a storage."""
    root = path.stem
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry(f"{root}/data.pkl"), state_dict_pickle(tensors, dtype))
        archive.writestr(_entry(f"{root}/byteorder"), b"little")
        for key, tensor in enumerate(tensors):
            entry = _entry(f"{root}/data/{key}")
            entry.file_size = tensor.element_count * NUMPY_DTYPES[dtype].itemsize
            with archive.open(entry, "w") as storage:
                for block in stream_values(tensor, dtype, seed):
                    storage.write(block)
                    wrote(block.nbytes)
        archive.writestr(_entry(f"{root}/version"), b"3\n")


def state_dict_pickle(tensors: Sequence[RandomTensor], dtype: StoredDtype) -> bytes:
    """Return the pickle (protocol 2) of an ordered dict of row-major tensors, storage ``i`` holding tensor
    ``i``.

    It is spelled out opcode by opcode because ``pickle`` can only name functions and classes it can import.
    """
    parts = [b"\x80\x02", _global("collections", "OrderedDict"), b")R("]
    for key, tensor in enumerate(tensors):
        storage = (
            b"("
            + _text("storage")
            + _global("torch", _STORAGE_CLASSES[dtype])
            + _text(str(key))
            + _text("cpu")
            + _integer(tensor.element_count)
            + b"tQ"
        )
        parts += [
            _text(tensor.name),
            _global("torch._utils", "_rebuild_tensor_v2"),
            b"(" + storage + _integer(0),
            _integer_tuple(tensor.shape),
            _integer_tuple(row_major_strides(tensor.shape)),
            b"\x89" + _global("collections", "OrderedDict") + b")R",
            b"tR",
        ]
    return b"".join([*parts, b"u."])


def _entry(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, _ZIP_EPOCH)


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode("ascii")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _integer(value: int) -> bytes:
    if value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def _integer_tuple(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t"
