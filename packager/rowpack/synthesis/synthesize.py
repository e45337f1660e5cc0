"""Make a random checkpoint of any size in the layout published ones have.

The weights are noise, so the text is too; what holds is everything a build and a benchmark see: files,
names, shapes, data types, and norms, decays and gates spread as in trained models.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowpack.free_space import free_space_bytes
from rowpack.synthesis.checkpoint_plan import CheckpointPlan, Layout, WeightFormat, plan_checkpoint
from rowpack.synthesis.random_values import NUMPY_DTYPES, RandomTensor, StoredDtype
from rowpack.synthesis.shard_writers import write_safetensors, write_torch
from rowpack_loaders.errors import RowpackError

Progress = Callable[[int, int], None]
"""Is told how many tensor bytes are written, and how many there are in all."""
Announce = Callable[[int], None]
"""Is told how many tensor bytes will be written, before the first is."""

_TOKENIZER = Path(__file__).parent.parent / "demo_checkpoint" / "tokenizer.json"
_WRITERS = {"safetensors": write_safetensors, "torch": write_torch}
_BESIDE_A_TENSOR_BYTES = 512
"""More than the weight files and their index take for one tensor beside its values."""
_FILE_NAMES = {"safetensors": ("model", "safetensors"), "torch": ("pytorch_model", "bin")}


@dataclass(frozen=True)
class SyntheticCheckpoint:
    """Describe what was written. ``parameter_count`` is the text model's; vision and MTP tensors do not
    count."""

    folder: Path
    parameter_count: int
    tensor_bytes: int
    weight_files: tuple[str, ...]


def synthesize(
    shape: str | Mapping[str, Any],
    output_folder: str | os.PathLike[str],
    *,
    layout: Layout | None = None,
    weight_format: WeightFormat | None = None,
    dtype: StoredDtype = "BF16",
    seed: int = 0,
    include_visual: bool = False,
    include_mtp: bool = False,
    shard_bytes: int | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> SyntheticCheckpoint:
    """Write a random checkpoint and return what it holds.

    ``shape`` is a name of ``PUBLISHED_SHAPES`` or the content of a ``config.json`` of type ``qwen3_5``,
    ``qwen3_5_text`` or ``rwkv``. ``layout`` and ``weight_format`` are those of the published models unless
    given: Qwen3.5 ``nested`` in safetensors shards with an index (``flat``: the text model alone, in one
    file), RWKV-4 as one torch pickle. ``shard_bytes`` cuts either format into shards. The same arguments
    give the same bytes.

    The tokenizer is the small one of the demo: ids past its vocabulary decode to nothing. The folder
    appears when it is complete, and nothing is begun that the disk has no room for. Raises ``RowpackError`` with
    codes ``unknown_shape``, ``bad_shape_config``, ``special_token_id``, ``family_look_alike``,
    ``shape_option_unsupported``, ``output_not_empty``, ``disk_full`` or ``output_write_failed``.
    """
    plan = plan_checkpoint(
        shape,
        layout=layout,
        weight_format=weight_format,
        include_visual=include_visual,
        include_mtp=include_mtp,
        shard_bytes=shard_bytes,
    )
    folder = Path(output_folder)
    item_bytes = NUMPY_DTYPES[dtype].itemsize
    tensors = plan.text + plan.others
    total_bytes = sum(tensor.element_count for tensor in tensors) * item_bytes
    _require_empty(folder)
    if announce is not None:
        announce(total_bytes)
    try:
        _require_space(folder, total_bytes, len(tensors))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            unfinished = Path(scratch) / "checkpoint"
            unfinished.mkdir()
            files = _write(plan, unfinished, dtype, seed, total_bytes, progress)
            unfinished.replace(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    parameter_count = sum(tensor.element_count for tensor in plan.text)
    return SyntheticCheckpoint(folder, parameter_count, total_bytes, files)


def text_tensors_of(shape: str | Mapping[str, Any]) -> list[RandomTensor]:
    """Return the tensors of a model's text part, without writing anything."""
    return plan_checkpoint(shape).text


def _write(
    plan: CheckpointPlan, folder: Path, dtype: StoredDtype, seed: int, total_bytes: int, progress: Progress | None
) -> tuple[str, ...]:
    _write_json(folder / "config.json", plan.config)
    _write_json(folder / "generation_config.json", plan.generation_config)
    shutil.copyfile(_TOKENIZER, folder / "tokenizer.json")
    written_bytes = 0

    def wrote(byte_count: int) -> None:
        nonlocal written_bytes
        written_bytes += byte_count
        if progress is not None:
            progress(written_bytes, total_bytes)

    stem, suffix = _FILE_NAMES[plan.weight_format]
    writer = _WRITERS[plan.weight_format]
    tensors = plan.text + plan.others
    if plan.shard_bytes is None:
        writer(folder / f"{stem}.{suffix}", tensors, dtype, seed, wrote)
        return (f"{stem}.{suffix}",)
    shards = list(_shards(tensors, plan.shard_bytes // NUMPY_DTYPES[dtype].itemsize))
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"{stem}-{number:05}-of-{len(shards):05}.{suffix}"
        writer(folder / name, shard, dtype, seed, wrote)
        weight_map.update({tensor.name: name for tensor in shard})
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    _write_json(folder / f"{stem}.{suffix}.index.json", index)
    return tuple(sorted(set(weight_map.values())))


def _shards(tensors: Sequence[RandomTensor], shard_elements: int) -> Iterator[list[RandomTensor]]:
    """Cut the tensors into runs of at most ``shard_elements``; a larger tensor gets a shard of its own."""
    shard: list[RandomTensor] = []
    elements = 0
    for tensor in tensors:
        if shard and elements + tensor.element_count > shard_elements:
            yield shard
            shard, elements = [], 0
        shard.append(tensor)
        elements += tensor.element_count
    yield shard


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _require_empty(folder: Path) -> None:
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise RowpackError(
            "output_not_empty",
            "a random checkpoint is written into a new or empty folder only",
            where=str(folder),
            found="a folder with files" if folder.is_dir() else "a file",
            expected="nothing, or an empty folder",
            remedy="Choose another folder, or remove this one",
        )


def _require_space(folder: Path, tensor_bytes: int, tensor_count: int) -> None:
    """Raise ``disk_full`` when the disk that ``folder`` will be on has too little room for the files."""
    needed_bytes = tensor_bytes + _TOKENIZER.stat().st_size + tensor_count * _BESIDE_A_TENSOR_BYTES
    there = next(parent for parent in folder.absolute().parents if parent.exists())
    free_bytes = free_space_bytes(there)
    if free_bytes is not None and free_bytes < needed_bytes:
        raise RowpackError(
            "disk_full",
            "the disk has no room for the checkpoint",
            where=str(folder.parent),
            found=f"{free_bytes} bytes free",
            expected=f"at least {needed_bytes} bytes",
            remedy="Free space, choose another folder, or store the weights smaller: --dtype BF16",
        )


def _unwritable(folder: Path, error: OSError) -> RowpackError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RowpackError(
            "disk_full",
            "the disk is full",
            where=str(folder),
            found=error.strerror,
            expected="room for the whole checkpoint",
            remedy="Free space or choose another folder",
        )
    return RowpackError(
        "output_write_failed",
        "the checkpoint cannot be written",
        where=str(folder),
        found=error.strerror or str(error),
        expected="a folder that can be written to",
        remedy="Check the folder's permissions and the disk",
    )
