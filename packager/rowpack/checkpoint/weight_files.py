"""Find a checkpoint's weight files in its folder and collect the tensors they hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rowpack.checkpoint.lfs_pointer import lfs_pointer_problem
from rowpack.checkpoint.safetensors_file import read_safetensors_file
from rowpack.checkpoint.shard_index import compare_index_with_shards, read_shard_index
from rowpack.checkpoint.tensors import StoredTensor
from rowpack.checkpoint.torch_archive import read_torch_file
from rowpack.checkpoint.unreadable_file import unreadable_file
from rowpack_loaders.errors import Problem

WeightFileReader = Callable[[Path, list[Problem]], dict[str, StoredTensor]]

_LAYOUTS: tuple[tuple[str, str, WeightFileReader], ...] = (
    ("model.safetensors.index.json", "model.safetensors", read_safetensors_file),
    ("pytorch_model.bin.index.json", "pytorch_model.bin", read_torch_file),
)
_LOOK_ALIKES = ("*.safetensors", "*.bin", "*.pth", "*.pt", "*.gguf", "*.onnx", "*.h5", "*.msgpack")


@dataclass
class Weights:
    """Hold the tensors of a checkpoint and the files (index included) they were found through."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def find_weights(folder: Path, problems: list[Problem], warnings: list[Problem]) -> Weights:
    """Return the weights of a checkpoint folder; append every fault of its files to ``problems``.

    Safetensors come before torch files, an index before a single file. Codes: ``weights_not_found``,
    ``shard_missing``, ``git_lfs_pointer``, ``checkpoint_unreadable``, as a warning ``stray_safetensors``,
    and those of the readers of index, safetensors and torch files.
    """
    for index_name, single_name, reader in _LAYOUTS:
        index_path, single_path = folder / index_name, folder / single_name
        # A link to nowhere counts as there: reading it says what is wrong.
        if os.path.lexists(index_path):
            return _sharded(index_path, single_path, reader, problems, warnings)
        if os.path.lexists(single_path):
            weights = Weights(files=[single_path])
            _warn_of_strays(folder, {single_name}, warnings)
            weights.tensors = _read(single_path, reader, problems) or {}
            return weights
    problems.append(_not_found(folder))
    return Weights()


def _sharded(
    index_path: Path,
    single_path: Path,
    reader: WeightFileReader,
    problems: list[Problem],
    warnings: list[Problem],
) -> Weights:
    weights = Weights(files=[index_path])
    index = read_shard_index(index_path, problems)
    if index is None:
        return weights
    _warn_of_strays(index_path.parent, set(index.shard_names), warnings)
    names_by_shard: dict[str, set[str]] = {}
    for shard_name in index.shard_names:
        path = index_path.with_name(shard_name)
        if not path.exists():
            problems.append(_shard_missing(path, index_path, single_path))
            continue
        weights.files.append(path)
        tensors = _read(path, reader, problems)
        if tensors is not None:
            names_by_shard[shard_name] = set(tensors)
            weights.tensors.update(tensors)
    compare_index_with_shards(index, names_by_shard, problems, warnings)
    return weights


def _read(path: Path, reader: WeightFileReader, problems: list[Problem]) -> dict[str, StoredTensor] | None:
    """Return the tensors of one weight file, or ``None`` when it has a problem."""
    problem_count = len(problems)
    try:
        pointer = lfs_pointer_problem(path)
        if pointer is None:
            tensors = reader(path, problems)
            return tensors if len(problems) == problem_count else None
        problems.append(pointer)
    except OSError as error:
        problems.append(unreadable_file(path, error))
    return None


def _warn_of_strays(folder: Path, used: set[str], warnings: list[Problem]) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in used:
            warnings.append(
                Problem(
                    "stray_safetensors",
                    "the file is not part of the checkpoint's weights and is left out",
                    where=str(path),
                    found="a file that nothing names",
                    expected="the files of the index, or one file without an index",
                    remedy="Remove it, or name it in the index if its tensors belong to the model",
                )
            )


def _shard_missing(path: Path, index_path: Path, single_path: Path) -> Problem:
    if single_path.exists():
        remedy = f"Fetch it, or remove {index_path.name} to build from {single_path.name}"
    else:
        remedy = "Fetch it from the model's repository, in the revision of the index"
    is_dangling_link = path.is_symlink()
    return Problem(
        "shard_missing",
        "a shard that the index names is not there",
        where=str(path),
        found="a link to a file that does not exist" if is_dangling_link else "no such file",
        expected=f"the shard named in {index_path.name}",
        remedy=remedy,
    )


def _not_found(folder: Path) -> Problem:
    accepted = ", ".join(f"{single} or {index}" for index, single, _ in _LAYOUTS)
    others = sorted({path.name for pattern in _LOOK_ALIKES for path in folder.glob(pattern)})
    sharded = any("-of-" in name for name in others)
    if sharded:
        remedy = "The shards' index is missing: fetch it from the model's repository"
    elif others:
        remedy = "Convert the checkpoint to the Hugging Face layout with save_pretrained()"
    else:
        remedy = "Fetch the weights from the model's repository"
    return Problem(
        "weights_not_found",
        "the folder has no weights in a layout that is read",
        where=str(folder),
        found=", ".join(others[:6]) if others else "no weight file",
        expected=accepted,
        remedy=remedy,
    )
