"""Read where the tensors of one safetensors file lie."""

from __future__ import annotations

from pathlib import Path

from rowpack.checkpoint.tensors import StoredTensor, TensorInfo
from rowpack_loaders.errors import Problem, RowpackError
from rowpack_loaders.safetensors_header import read_header


def read_safetensors_file(path: Path, problems: list[Problem]) -> dict[str, StoredTensor]:
    """Return name → stored tensor of one safetensors file; append what is wrong with the file to
    ``problems``.

    Only the header is read. Codes are those of ``rowpack_loaders.safetensors_header.read_header``.
    """
    try:
        with path.open("rb") as file:
            entries = read_header(file.fileno(), total_bytes=path.stat().st_size, where=str(path))
    except RowpackError as error:
        problems.extend(error.problems)
        return {}
    return {
        name: StoredTensor(
            TensorInfo(name, entry.dtype, entry.shape, entry.byte_count, path.name), path, entry.offset_bytes
        )
        for name, entry in entries.items()
    }
