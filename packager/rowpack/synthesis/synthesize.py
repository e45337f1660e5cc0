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
from typing import Any, Literal

from rowpack.synthesis.published_shapes import published_config
from rowpack.synthesis.qwen3_5_tensors import (
    multi_token_prediction_tensors,
    text_tensors,
    visual_tensors,
)
from rowpack.synthesis.random_values import NUMPY_DTYPES, RandomTensor, StoredDtype
from rowpack.synthesis.rwkv_tensors import rwkv_tensors
from rowpack.synthesis.shard_writers import write_safetensors, write_torch
from rowpack_loaders.errors import RowpackError

Layout = Literal["nested", "flat"]
WeightFormat = Literal["safetensors", "torch"]
Progress = Callable[[int, int], None]
"""Is told how many tensor bytes are written, and how many there are in all."""

PUBLISHED_SHARD_BYTES = 5 * 10**9

_TOKENIZER = Path(__file__).parent.parent / "demo_checkpoint" / "tokenizer.json"
_WRITERS = {"safetensors": write_safetensors, "torch": write_torch}
_FILE_NAMES = {"safetensors": ("model", "safetensors"), "torch": ("pytorch_model", "bin")}


@dataclass(frozen=True)
class SyntheticCheckpoint:
    """Describe what was written. ``parameter_count`` is the text model's; vision and MTP tensors do not
    count."""

    folder: Path
    parameter_count: int
    tensor_bytes: int
    weight_files: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """Hold what is to be written, before a byte is."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    text: list[RandomTensor]
    others: list[RandomTensor]
    weight_format: WeightFormat
    shard_bytes: int | None


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
    progress: Progress | None = None,
) -> SyntheticCheckpoint:
    """Write a random checkpoint and return what it holds.

    ``shape`` is a name of ``PUBLISHED_SHAPES`` or the content of a ``config.json`` of type ``qwen3_5``,
    ``qwen3_5_text`` or ``rwkv``. ``layout`` and ``weight_format`` are those of the published models unless
    given: Qwen3.5 ``nested`` in safetensors shards with an index (``flat``: the text model alone, in one
    file), RWKV-4 as one torch pickle. ``shard_bytes`` cuts either format into shards. The same arguments
    give the same bytes.

    The tokenizer is the small one of the demo: ids past its vocabulary decode to nothing. The folder
    appears when it is complete. Raises ``RowpackError`` with codes ``unknown_shape``, ``bad_shape_config``,
    ``output_not_empty``, ``disk_full`` or ``output_write_failed``.
    """
    plan = _plan(shape, layout, weight_format, include_visual, include_mtp, shard_bytes)
    folder = Path(output_folder)
    item_bytes = NUMPY_DTYPES[dtype].itemsize
    tensors = plan.text + plan.others
    total_bytes = sum(tensor.element_count for tensor in tensors) * item_bytes
    _require_empty(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _require_space(folder.parent, total_bytes)
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
    return _plan(shape, None, None, False, False, None).text


def _plan(
    shape: str | Mapping[str, Any],
    layout: Layout | None,
    weight_format: WeightFormat | None,
    include_visual: bool,
    include_mtp: bool,
    shard_bytes: int | None,
) -> _Plan:
    config = published_config(shape) if isinstance(shape, str) else dict(shape)
    model_type = config.get("model_type")
    try:
        if model_type == "rwkv":
            ids = {"bos_token_id": config.get("bos_token_id"), "eos_token_id": config["eos_token_id"]}
            return _Plan(config, ids, list(rwkv_tensors(config)), [], weight_format or "torch", shard_bytes)
        if model_type not in ("qwen3_5", "qwen3_5_text"):
            raise _bad_config(f"model_type {model_type!r}", "qwen3_5, qwen3_5_text or rwkv")
        text_config = dict(config["text_config"] if model_type == "qwen3_5" else config)
        is_nested = layout == "nested" or (layout is None and model_type == "qwen3_5")
        others: list[RandomTensor] = []
        if include_visual:
            others += visual_tensors(config["vision_config"])
        if include_mtp:
            others += multi_token_prediction_tensors(text_config)
        prefix = "model.language_model" if is_nested else "model"
        return _Plan(
            _nested_config(config, text_config) if is_nested else _flat_config(text_config),
            _qwen_generation_config(text_config),
            list(text_tensors(text_config, prefix)),
            others,
            weight_format or "safetensors",
            shard_bytes or (PUBLISHED_SHARD_BYTES if is_nested else None),
        )
    except KeyError as error:
        raise _bad_config(f"no key {error}", "every size of the model") from error


def _nested_config(config: dict[str, Any], text_config: dict[str, Any]) -> dict[str, Any]:
    if config["model_type"] == "qwen3_5":
        return config
    inner = {key: value for key, value in text_config.items() if key != "architectures"}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": inner,
        "tie_word_embeddings": text_config["tie_word_embeddings"],
    }


def _flat_config(text_config: dict[str, Any]) -> dict[str, Any]:
    return {**text_config, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}


def _qwen_generation_config(text_config: dict[str, Any]) -> dict[str, Any]:
    end = text_config.get("eos_token_id")
    # The published models end a chat turn with an id that config.json does not know.
    return {"eos_token_id": [248046, end] if end == 248044 else end, "do_sample": False}


def _write(
    plan: _Plan, folder: Path, dtype: StoredDtype, seed: int, total_bytes: int, progress: Progress | None
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


def _require_space(parent: Path, total_bytes: int) -> None:
    free_bytes = shutil.disk_usage(parent).free
    if free_bytes < total_bytes:
        raise RowpackError(
            "disk_full",
            "the disk has no room for the checkpoint",
            where=str(parent),
            found=f"{free_bytes} bytes free",
            expected=f"at least {total_bytes} bytes",
            remedy="Free space, choose another folder, or store the weights smaller: --dtype BF16",
        )


def _unwritable(folder: Path, error: OSError) -> RowpackError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RowpackError(
            "disk_full",
            "the disk is full",
            where=str(folder),
            found=error.strerror,
            remedy="Free space or choose another folder",
        )
    return RowpackError(
        "output_write_failed",
        "the checkpoint cannot be written",
        where=str(folder),
        found=error.strerror or str(error),
        remedy="Check the folder's permissions and the disk",
    )


def _bad_config(found: str, expected: str) -> RowpackError:
    return RowpackError(
        "bad_shape_config",
        "no checkpoint can be made from this configuration",
        where="config.json",
        found=found,
        expected=expected,
    )
