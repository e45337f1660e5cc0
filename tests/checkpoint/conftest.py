"""Tiny checkpoint folders, written file by file so that each test can break one rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import INDEX, SHARDS, Tensors, write_json, write_safetensors


@pytest.fixture
def tensors() -> Tensors:
    return {
        "embed.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
        "norm.weight": np.arange(3, dtype=np.float32),
    }


@pytest.fixture
def bare_folder(tmp_path: Path) -> Path:
    """A checkpoint that lacks nothing but its weights."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_json(folder / "config.json", {"model_type": "qwen3_5_text"})
    write_json(folder / "generation_config.json", {"eos_token_id": [1, 2]})
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    write_json(folder / "tokenizer_config.json", {"eos_token": "</s>"})
    (folder / "merges.txt").write_text("a b\n")
    return folder


@pytest.fixture
def single_folder(bare_folder: Path, tensors: Tensors) -> Path:
    """A complete checkpoint with one weight file."""
    write_safetensors(bare_folder / "model.safetensors", tensors)
    return bare_folder


@pytest.fixture
def sharded_folder(bare_folder: Path, tensors: Tensors) -> Path:
    """A complete checkpoint with two shards and their index."""
    weight_map = dict(zip(tensors, SHARDS, strict=True))
    for name, shard in weight_map.items():
        write_safetensors(bare_folder / shard, {name: tensors[name]})
    write_json(bare_folder / INDEX, {"metadata": {"total_size": 60}, "weight_map": weight_map})
    return bare_folder
