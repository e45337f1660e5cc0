"""What an opened checkpoint hands out."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_files import INDEX, SHARDS, Tensors, write_json, write_safetensors

from rowpack.checkpoint import TensorInfo, open_checkpoint
from rowpack_loaders.errors import RowpackError


def test_single_file_checkpoint_gives_configs_tensors_and_files(single_folder: Path, tensors: Tensors) -> None:
    with open_checkpoint(single_folder) as checkpoint:
        assert checkpoint.config == {"model_type": "qwen3_5_text"}
        assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
        assert checkpoint.tokenizer_config == {"eos_token": "</s>"}
        assert checkpoint.tensors == {
            "embed.weight": TensorInfo("embed.weight", "F32", (4, 3), 48, "model.safetensors"),
            "norm.weight": TensorInfo("norm.weight", "F32", (3,), 12, "model.safetensors"),
        }
        assert list(checkpoint.tokenizer_files) == [
            "generation_config.json",
            "merges.txt",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert [(file.name, file.byte_count) for file in checkpoint.input_files] == [
            (path.name, path.stat().st_size) for path in sorted(single_folder.iterdir())
        ]
        assert checkpoint.warnings == []
        for name, array in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), array)


def test_sharded_checkpoint_reads_each_tensor_from_its_shard(sharded_folder: Path, tensors: Tensors) -> None:
    with open_checkpoint(sharded_folder) as checkpoint:
        assert {name: info.file for name, info in checkpoint.tensors.items()} == dict(zip(tensors, SHARDS, strict=True))
        assert {INDEX, *SHARDS} <= {file.name for file in checkpoint.input_files}
        for name, array in tensors.items():
            np.testing.assert_array_equal(checkpoint.read(name), array)


def test_optional_configs_may_be_absent(single_folder: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "merges.txt"):
        (single_folder / name).unlink()
    with open_checkpoint(single_folder) as checkpoint:
        assert checkpoint.generation_config is None
        assert checkpoint.tokenizer_config is None
        assert list(checkpoint.tokenizer_files) == ["tokenizer.json"]


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 3), (3, 4), (2, 2)])
def test_rows_are_fresh_arrays_of_the_rows_asked_for(
    single_folder: Path, tensors: Tensors, start: int, stop: int
) -> None:
    with open_checkpoint(single_folder) as checkpoint:
        rows = checkpoint.read_rows("embed.weight", start, stop)
    np.testing.assert_array_equal(rows, tensors["embed.weight"][start:stop])
    assert rows.shape == (stop - start, 3)
    rows += 1  # neither a mapping of the file nor read-only


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_rows_outside_the_tensor_are_an_index_error(single_folder: Path, start: int, stop: int) -> None:
    with open_checkpoint(single_folder) as checkpoint, pytest.raises(IndexError, match=r"embed\.weight"):
        checkpoint.read_rows("embed.weight", start, stop)


def test_every_weight_dtype_scalars_and_empty_tensors_read_back(bare_folder: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]])
    stored: Tensors = {
        "f64": values.astype(np.float64),
        "f32": values.astype(np.float32),
        "f16": values.astype(np.float16),
        "bf16": values.astype(ml_dtypes.bfloat16),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }
    write_safetensors(bare_folder / "model.safetensors", stored)
    with open_checkpoint(bare_folder) as checkpoint:
        for name, array in stored.items():
            read = checkpoint.read(name)
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(read, array)


def test_a_tensor_that_holds_no_weights_may_be_there_but_not_be_read(bare_folder: Path) -> None:
    write_safetensors(bare_folder / "model.safetensors", {"positions": np.arange(3)})
    with open_checkpoint(bare_folder) as checkpoint:
        assert checkpoint.tensors["positions"].dtype == "I64"
        with pytest.raises(RowpackError) as caught:
            checkpoint.read("positions")
    assert caught.value.code == "unsupported_tensor_dtype"
    assert caught.value.problem.found == "I64"


def test_links_into_a_download_cache_are_followed(single_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for number, path in enumerate(sorted(single_folder.iterdir())):
        blob = path.replace(cache / str(number))
        (snapshot / path.name).symlink_to(blob)
    linked_folder = tmp_path / "link"
    linked_folder.symlink_to(snapshot)
    with open_checkpoint(linked_folder) as checkpoint:
        assert checkpoint.read("norm.weight").tolist() == [0, 1, 2]
        assert {file.name for file in checkpoint.input_files} == {path.name for path in snapshot.iterdir()}


def test_a_file_cut_off_after_opening_is_said(single_folder: Path) -> None:
    with open_checkpoint(single_folder) as checkpoint:
        path = single_folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(RowpackError) as caught:
            checkpoint.read("norm.weight")
    assert caught.value.code == "checkpoint_changed"
    assert caught.value.problem.found == f"{path.stat().st_size} bytes"


def test_reading_after_close_is_refused_and_closing_twice_is_not(single_folder: Path) -> None:
    checkpoint = open_checkpoint(single_folder)
    checkpoint.read("norm.weight")
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(ValueError, match="closed"):
        checkpoint.read("norm.weight")


def test_weights_win_over_a_torch_copy_beside_them(single_folder: Path) -> None:
    (single_folder / "pytorch_model.bin").write_bytes(b"not looked at")
    with open_checkpoint(single_folder) as checkpoint:
        assert checkpoint.tensors["norm.weight"].file == "model.safetensors"
        assert "pytorch_model.bin" not in {file.name for file in checkpoint.input_files}


def test_stray_safetensors_are_a_warning(sharded_folder: Path, tensors: Tensors) -> None:
    write_safetensors(sharded_folder / "consolidated.safetensors", tensors)
    with open_checkpoint(sharded_folder) as checkpoint:
        assert [warning.code for warning in checkpoint.warnings] == ["stray_safetensors"]
        assert checkpoint.warnings[0].where == str(sharded_folder / "consolidated.safetensors")
        assert checkpoint.tensors["embed.weight"].file == SHARDS[0]


def test_a_tensor_the_index_forgot_is_a_warning_and_used(sharded_folder: Path) -> None:
    write_json(sharded_folder / INDEX, {"weight_map": {"norm.weight": SHARDS[1]}})
    with open_checkpoint(sharded_folder) as checkpoint:
        assert [warning.code for warning in checkpoint.warnings] == ["stray_safetensors"]
        assert "embed.weight" not in checkpoint.tensors
    write_safetensors(sharded_folder / SHARDS[1], {name: np.zeros(1, np.float32) for name in ("norm.weight", "extra")})
    with open_checkpoint(sharded_folder) as checkpoint:
        assert {warning.code for warning in checkpoint.warnings} == {"stray_safetensors", "tensor_not_in_index"}
        assert "extra" in checkpoint.tensors


def test_the_two_trained_checkpoints_open(qwen_checkpoint: Path, rwkv_checkpoint: Path) -> None:
    with open_checkpoint(qwen_checkpoint) as qwen, open_checkpoint(rwkv_checkpoint) as rwkv:
        assert len(qwen.tensors) == 108
        assert len(rwkv.tensors) == 114
        decay = rwkv.read("rwkv.blocks.0.attention.time_decay")
        assert decay.dtype == ml_dtypes.bfloat16
        assert decay.min() < -4 < 2 < decay.max()
        whole = qwen.read("model.embed_tokens.weight")
        np.testing.assert_array_equal(qwen.read_rows("model.embed_tokens.weight", 1000, 1010), whole[1000:1010])
