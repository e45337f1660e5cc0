"""Read torch files in zip format: where each tensor's bytes lie, without torch and without loading them.

``torch.save`` (since 1.6) writes a zip of uncompressed entries: ``<name>/data.pkl`` holds the pickled state
dict, ``<name>/data/<key>`` the bytes of one storage, so a tensor is a range of the file.
"""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from rowpack.checkpoint.tensors import StoredTensor, TensorInfo, is_row_major
from rowpack.checkpoint.torch_pickle import STORAGE_DTYPES, PickledTensor, read_state_dict
from rowpack_loaders.errors import Problem, RowpackError

_LARGEST_PICKLE_BYTES = 64 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ITEM_BYTES = dict(STORAGE_DTYPES.values())
# What zipfile raises for damaged archives: its own error for some faults, whatever comes up for others.
_ZIP_FAULTS = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError, struct.error)


def read_torch_file(path: Path, problems: list[Problem]) -> dict[str, StoredTensor]:
    """Return name → stored tensor of one torch file; append what is wrong with the file to ``problems``.

    Codes: ``legacy_torch_file``, ``torch_file_truncated``, ``malformed_torch_file`` and those of
    ``torch_pickle.read_state_dict``.
    """
    try:
        with path.open("rb") as file:
            return _read_archive(path, file, problems)
    except RowpackError as error:
        problems.extend(error.problems)
    return {}


def _read_archive(path: Path, file: BinaryIO, problems: list[Problem]) -> dict[str, StoredTensor]:
    is_zip_start = file.read(4) == b"PK\x03\x04"
    try:
        archive = zipfile.ZipFile(file) if zipfile.is_zipfile(file) else None
    except _ZIP_FAULTS as error:
        raise _malformed(path, f"{type(error).__name__}: {error}", "a readable directory of entries") from error
    if archive is None:
        raise _not_an_archive(path, is_zip_start)
    entries = {entry.filename: entry for entry in archive.infolist()}
    tables = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(entries) != len(archive.infolist()) or len(tables) != 1:
        raise _malformed(path, f"{len(tables)} entries named data.pkl, {len(entries)} entries", "one data.pkl")
    prefix = tables[0].removesuffix("data.pkl")
    content = _read_small(path, file, archive, entries[tables[0]])
    byte_order = b"little"
    if prefix + "byteorder" in entries:
        byte_order = _read_small(path, file, archive, entries[prefix + "byteorder"])
    if byte_order != b"little":
        raise _malformed(path, f"byte order {byte_order[:16]!r}", "little-endian numbers")
    tensors = {}
    for name, tensor in read_state_dict(content, str(path)).items():
        entry = entries.get(f"{prefix}data/{tensor.storage.key}")
        if entry is None:
            problems.append(_bad_tensor(path, name, f"no entry data/{tensor.storage.key[:80]}", "its storage"))
            continue
        stored = _stored_tensor(path, name, tensor, entry, _entry_offset(path, file, entry), problems)
        if stored is not None:
            tensors[name] = stored
    return tensors


def _read_small(path: Path, file: BinaryIO, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the bytes of an entry that is no storage, checked against their checksum."""
    if entry.file_size > _LARGEST_PICKLE_BYTES:
        found = f"entry {entry.filename!r} of {entry.file_size} bytes"
        raise _malformed(path, found, f"at most {_LARGEST_PICKLE_BYTES} bytes")
    _entry_offset(path, file, entry)
    try:
        return archive.read(entry)
    except _ZIP_FAULTS as error:
        raise _malformed(path, f"{type(error).__name__}: {error}", "entries that match their checksums") from error


def _stored_tensor(
    path: Path,
    name: str,
    tensor: PickledTensor,
    entry: zipfile.ZipInfo,
    entry_offset_bytes: int,
    problems: list[Problem],
) -> StoredTensor | None:
    storage = tensor.storage
    item_bytes = _ITEM_BYTES[storage.dtype]
    if entry.file_size != storage.element_count * item_bytes:
        expected = f"{storage.element_count * item_bytes} bytes"
        problems.append(_bad_tensor(path, name, f"a storage of {entry.file_size} bytes", expected))
        return None
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.strides, strict=True))
    if 0 not in tensor.shape and tensor.offset + last >= storage.element_count:
        expected = f"less than {storage.element_count}, the elements of its storage"
        problems.append(_bad_tensor(path, name, f"an element at {tensor.offset + last}", expected))
        return None
    info = TensorInfo(name, storage.dtype, tensor.shape, math.prod(tensor.shape) * item_bytes, path.name)
    strides = None if is_row_major(tensor.shape, tensor.strides) else tensor.strides
    return StoredTensor(info, path, entry_offset_bytes + tensor.offset * item_bytes, strides)


def _entry_offset(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Return where an entry's bytes start; only the entry's local header knows, and it may lie."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise _malformed(path, f"entry {entry.filename!r} compressed or encrypted", "entries stored as they are")
    header = b""
    if entry.header_offset >= 0:
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise _malformed(path, f"entry {entry.filename!r} outside the file", "entries inside the file")
    magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    offset = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if magic != b"PK\x03\x04" or offset + entry.file_size > path.stat().st_size:
        raise _malformed(path, f"entry {entry.filename!r} outside the file", "entries inside the file")
    return int(offset)


def _not_an_archive(path: Path, is_zip_start: bool) -> RowpackError:
    if is_zip_start:
        return RowpackError(
            "torch_file_truncated",
            "the torch file has no directory at its end: it was cut off",
            where=str(path),
            found=f"{path.stat().st_size} bytes",
            expected="a complete zip archive",
            remedy="Fetch the file again",
        )
    return RowpackError(
        "legacy_torch_file",
        "the torch file is not in the zip format that torch.save writes since version 1.6",
        where=str(path),
        found="another format",
        expected="a zip archive",
        remedy="Where you trust it: torch.load(…, weights_only=True), then save it as safetensors",
    )


def _malformed(path: Path, found: str, expected: str) -> RowpackError:
    return RowpackError(
        "malformed_torch_file",
        "the torch file is not laid out as torch.save does it",
        where=str(path),
        found=found,
        expected=expected,
        remedy="Fetch the file again, or convert it to safetensors where you trust it",
    )


def _bad_tensor(path: Path, name: str, found: str, expected: str) -> Problem:
    return Problem(
        "malformed_torch_file",
        "the tensor does not fit its storage",
        where=f"{path}: {name[:200]}",
        found=found,
        expected=expected,
        remedy="Fetch the file again",
    )
