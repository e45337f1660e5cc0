"""Small random models through every engine against a float64 forward pass of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_engines import ModelEngines, golden_cases, golden_error
from oracles import Array, relative_error
from reference_forward import forward
from small_configs import QWEN3_5, RWKV

from rowpack.checkpoint import open_checkpoint
from rowpack.synthesis.synthesize import synthesize

BAR = 1e-5
ROWS = 71
LENGTHS = (1, 2, 3, 63, 64, 65, 66)

NESTED = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {**QWEN3_5, "tie_word_embeddings": True},
    "tie_word_embeddings": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5": QWEN3_5,
    "qwen3_5 nested, tied": NESTED,
    "qwen3_5 equal heads, whole rotary": {
        **QWEN3_5,
        "linear_num_value_heads": 2,
        "num_key_value_heads": 6,
        "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 1e7, "rope_type": "default"},
    },
    "rwkv rescaled every 2": RWKV,
    "rwkv rescaled every block": {**RWKV, "rescale_every": 1},
    "rwkv without rescaling, tied": {**RWKV, "rescale_every": 0, "tie_word_embeddings": True},
}


@dataclass
class Model:
    """A random model, a prompt, and the reference's logits after each of its rows."""

    engines: ModelEngines
    ids: list[int]

    @cached_property
    def logits(self) -> Array:
        with open_checkpoint(self.engines.checkpoint) as checkpoint:
            return forward(checkpoint.config, checkpoint.read, self.ids)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    made: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in made:
            folder = tmp_path_factory.mktemp("model")
            synthesize(CONFIGS[name], folder / "checkpoint", dtype="F32", weight_format="safetensors", seed=7)
            engines = ModelEngines(folder / "checkpoint", folder)
            made[name] = Model(engines, np.random.default_rng(5).integers(0, 96, ROWS).tolist())
        return made[name]

    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_exported_model(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    for rows in (1, 2, 5, ROWS):
        logits = model.engines.sequence().feed(model.engines.exported, model.ids[:rows])
        assert relative_error(logits, model.logits[rows - 1]) <= BAR, rows


@pytest.mark.parametrize("name", CONFIGS)
def test_token_loop(models: Callable[[str], Model], name: str) -> None:
    model, sequence = models(name), models(name).engines.sequence()
    found = [sequence.feed(model.engines.decode, [token]) for token in model.ids]
    assert relative_error(np.stack(found), model.logits) <= BAR


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_five_decode_steps(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    for rows in LENGTHS:
        sequence = model.engines.sequence()
        logits = [sequence.prefill(model.engines.prefill, model.ids[:rows])]
        logits += [sequence.feed(model.engines.decode, [token]) for token in model.ids[rows : rows + 5]]
        assert relative_error(np.stack(logits), model.logits[rows - 1 : rows + 5]) <= BAR, rows


@pytest.mark.parametrize("cuts", [[5, 1, 64, 1], [1, 1, 1, 64, 4], [7] * 10 + [1]], ids=str)
@pytest.mark.parametrize("name", ["qwen3_5", "rwkv rescaled every 2"])
def test_any_cut_of_a_prompt(models: Callable[[str], Model], name: str, cuts: list[int]) -> None:
    model = models(name)
    logits = model.engines.sequence().prefill(model.engines.prefill, model.ids, cuts)
    assert relative_error(logits, model.logits[-1]) <= BAR


@pytest.mark.parametrize("name", ["qwen3_5", "rwkv rescaled every 2"])
def test_states_are_the_same_after_chunks_and_single_rows(models: Callable[[str], Model], name: str) -> None:
    model = models(name)
    chunked, looped = model.engines.sequence(), model.engines.sequence()
    chunked.prefill(model.engines.prefill, model.ids)
    looped.prefill(model.engines.decode, model.ids, [1] * ROWS)
    if "num_state_0" in looped.values:
        # Numerator, denominator and maximum share a free scale: bring both to the same.
        for sequence in (chunked, looped):
            for block in range(5):
                den = sequence.values[f"den_state_{block}"]
                sequence.values[f"max_state_{block}"] = sequence.values[f"max_state_{block}"] + np.log(den)
                sequence.values[f"num_state_{block}"] = sequence.values[f"num_state_{block}"] / den
                sequence.values[f"den_state_{block}"] = np.ones_like(den)
    for state, value in chunked.values.items():
        assert relative_error(value, looped.values[state]) <= BAR, state


def test_rescaling_changes_no_logits_but_what_the_norms_epsilon_sees(models: Callable[[str], Model]) -> None:
    """The same weights with and without: a wrong exponent or halving would change the logits altogether."""
    model = models("rwkv rescaled every 2")
    with open_checkpoint(model.engines.checkpoint) as checkpoint:
        plain = forward({**checkpoint.config, "rescale_every": 0}, checkpoint.read, model.ids)
    difference = relative_error(model.logits, plain)
    assert 0 < difference <= 1e-3


@pytest.mark.parametrize("shipped", ["qwen_checkpoint", "rwkv_checkpoint"])
def test_the_oracle_gives_the_references_logits(shipped: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(shipped)
    case = next(case for case in golden_cases(folder) if len(case["prompt_ids"]) == 31)
    with open_checkpoint(folder) as checkpoint:
        logits = forward(checkpoint.config, checkpoint.read, case["prompt_ids"])
    assert golden_error(logits[-1], case) <= 1e-5
