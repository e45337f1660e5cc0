"""Random checkpoints of shapes that nobody trained: a bundle gives the logits and tokens of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rowpack import BuildRequest, build
from rowpack.synthesis import synthesize
from rowpack_loaders import load

pytestmark = pytest.mark.oracle

PROMPT_LENGTHS = (1, 3, 65, 130)
NEW_TOKENS = 8
RELATIVE_TOLERANCE = 1e-4

QWEN_CHANGES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 5,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}
RWKV_CHANGES: dict[str, Any] = {
    "hidden_size": 80,
    "attention_hidden_size": 80,
    "intermediate_size": 320,
    "num_hidden_layers": 5,
    "rescale_every": 2,
}


def changed_config(source: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a shipped checkpoint with other sizes."""
    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8")) | changes
    if "rope_parameters" in config:
        rotary = int(config["head_dim"] * config["partial_rotary_factor"])
        section = [rotary // 2 - 2 * (rotary // 8), rotary // 8, rotary // 8]
        config["rope_parameters"] |= {
            "partial_rotary_factor": config["partial_rotary_factor"],
            "mrope_section": section,
        }
    return config


@pytest.fixture(params=["qwen flat", "qwen nested", "rwkv"])
def checkpoint(request: pytest.FixtureRequest, qwen_checkpoint: Path, rwkv_checkpoint: Path, tmp_path: Path) -> Path:
    """A random checkpoint in float32: Qwen3.5 in both layouts (the nested one in shards), RWKV-4 as torch pickle."""
    folder = tmp_path / "checkpoint"
    if request.param == "rwkv":
        synthesize(changed_config(rwkv_checkpoint, RWKV_CHANGES), folder, dtype="F32", weight_format="torch")
    elif request.param == "qwen flat":
        synthesize(changed_config(qwen_checkpoint, QWEN_CHANGES), folder, dtype="F32", layout="flat")
    else:
        config = changed_config(qwen_checkpoint, QWEN_CHANGES)
        synthesize(config, folder, dtype="F32", layout="nested", shard_bytes=500_000)
    return folder


class Reference:
    """A checkpoint in transformers, on the CPU in float32, every step computed from the whole prefix."""

    def __init__(self, checkpoint: Path) -> None:
        import torch
        import transformers

        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def last_row(self, token_ids: list[int]) -> np.ndarray[Any, Any]:
        """Return the logits of the last row."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([token_ids]), use_cache=False).logits
        row: np.ndarray[Any, Any] = logits[0, -1].numpy()
        return row

    def greedy(self, prompt: list[int]) -> list[int]:
        """Return the tokens that follow ``prompt``."""
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            ids.append(int(self.last_row(ids).argmax()))
        return ids[len(prompt) :]


def test_a_bundle_computes_what_transformers_computes(checkpoint: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "model.bundle"
    build(BuildRequest(checkpoint, bundle, decoder_engine_layout="split", max_sequence_length=256))
    reference = Reference(checkpoint)
    with load(bundle) as decoder:
        for length in PROMPT_LENGTHS:
            prompt = np.random.default_rng(length).integers(2048, size=length).tolist()
            expected = reference.last_row(prompt)
            logits = decoder.session().prefill(prompt, mode="chunked")
            assert np.abs(logits - expected).max() <= RELATIVE_TOLERANCE * np.abs(expected).max(), length
            generation = decoder.generate(prompt, NEW_TOKENS, stop_token_ids=[], prefill="token-loop")
            assert list(generation.token_ids) == reference.greedy(prompt), length
