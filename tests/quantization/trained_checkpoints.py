"""The two small trained checkpoints, and how a bundle made from one answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rowpack_loaders import load
from rowpack_loaders.generation import generate_tokens
from rowpack_loaders.sampling import Sampler, SamplingParameters

ROOT = Path(__file__).resolve().parents[2]
QWEN = ROOT / "packager" / "rowpack" / "demo_checkpoint"
RWKV = ROOT / "tests" / "data" / "rwkv4-kjv-3.7m"
TRAINED = {"qwen3_5": QWEN, "rwkv": RWKV}


def golden(checkpoint: Path) -> dict[str, Any]:
    """Return the reference's answers of a checkpoint."""
    answers: dict[str, Any] = json.loads((checkpoint / "golden.json").read_text("utf-8"))
    return answers


def logit_error(bundle: Path, checkpoint: Path) -> float:
    """Return the mean distance of the five largest logits from the reference's, relative to the largest."""
    decoder = load(bundle, threads=1)
    errors = []
    for case in golden(checkpoint)["cases"]:
        if len(case["prompt_ids"]) > 70:
            continue
        logits = decoder.session().prefill(case["prompt_ids"])
        top = case["last_row_top5"]
        scale = max(abs(value) for _, value in top)
        errors.append(max(abs(float(logits[token]) - value) for token, value in top) / scale)
    return float(np.mean(errors))


def last_words_as_the_reference(bundle: Path, checkpoint: Path, items: int) -> float:
    """Return the share of verses whose last word is the float32 reference's."""
    decoder = load(bundle, threads=1)
    equal = 0
    session = decoder.session()
    for item in golden(checkpoint)["last_word"]["items"][:items]:
        count = len(item["reference_ids"])
        sampler = Sampler(SamplingParameters())
        run = generate_tokens(session, item["context_ids"], max_new_tokens=count, sampler=sampler)
        equal += list(run.token_ids) == item["reference_ids"]
    return equal / items
