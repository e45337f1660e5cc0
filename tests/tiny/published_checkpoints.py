"""Checkpoints of published shapes without their weights: config, and what is known of each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rowpack.checkpoint import Checkpoint, TensorInfo
from rowpack.families import find_family
from rowpack.synthesis.published_shapes import published_config
from rowpack.synthesis.synthesize import text_tensors_of


def published_checkpoint(
    shape: str, *, tensors: Mapping[str, tuple[int, ...]] | None = None, **values: Any
) -> Checkpoint:
    """Return a checkpoint whose config has other ``values`` in its text part, and ``tensors`` other shapes."""
    config = published_config(shape)
    family = find_family(config)
    text = {**family.text_config(config), **values}
    names = [tensor.name for tensor in text_tensors_of(shape)]
    shapes = {**family.describe(config, names, "fp32", 1).required_tensors, **(tensors or {})}
    return Checkpoint(
        path=Path("checkpoint"),
        config={**config, "text_config": text} if "text_config" in config else text,
        generation_config=None,
        tokenizer_config=None,
        tokenizer_files={},
        tensors={
            name: TensorInfo(name=name, dtype="BF16", shape=extents, byte_count=0, file="model.safetensors")
            for name, extents in shapes.items()
        },
        input_files=[],
        warnings=[],
        _stored={},
    )
