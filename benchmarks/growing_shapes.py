"""Make configs of shapes that no model was published in: more or fewer layers, or one part large and the rest small."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Config = dict[str, Any]

WKV_HIDDEN = 5120
"""The width of RWKV-4 14b."""


def text_part(config: Config) -> Config:
    """Return the part of a config that describes the text model."""
    part: Config = config.get("text_config", config)
    return part


def with_layers(config: Config, layers: int, vocabulary_size: int | None = None) -> Config:
    """Return a config with another number of layers; kinds of layers repeat as they did.

    A small ``vocabulary_size`` leaves the layers alone to be measured, without the head.
    """
    changed = copy.deepcopy(config)
    text = text_part(changed)
    text["num_hidden_layers"] = layers
    if "layer_types" in text:
        kinds = text["layer_types"]
        text["layer_types"] = [kinds[index % len(kinds)] for index in range(layers)]
    if vocabulary_size is not None:
        text["vocab_size"] = vocabulary_size
        for name in ("eos_token_id", "bos_token_id"):
            if isinstance(text.get(name), int):
                text[name] = min(text[name], vocabulary_size - 1)
    return changed


def wide_rwkv(config: Config, hidden: int) -> Config:
    """Return an RWKV-4 config of one layer that is wide where WKV is, and small everywhere else."""
    return {
        **with_layers(config, 1, vocabulary_size=1024),
        "hidden_size": hidden,
        "attention_hidden_size": hidden,
        "intermediate_size": 256,
    }


def write_shape(config: Config, path: Path) -> str:
    """Write a config and return its path, which ``rowpack synth`` takes as a shape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def config_of(shape: str) -> Config:
    """Return the config of a published shape or of a file."""
    from rowpack.cli.commands.synth import read_config
    from rowpack.synthesis.published_shapes import published_config

    return read_config(Path(shape)) if shape.endswith(".json") else published_config(shape)


def wkv_tensor_bytes(rows: int, hidden: int) -> int:
    """Return the size of the exponents of a WKV chunk: [rows + 1, rows, hidden] in float32."""
    return 4 * (rows + 1) * rows * hidden
