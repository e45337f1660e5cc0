"""The two trained checkpoints as bundles, and their reference outputs (transformers, float32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rowpack import BuildRequest, build
from rowpack_loaders.golden import GoldenCase


def build_bundle(checkpoint: Path, folder: Path, layout: str) -> Path:
    """Build ``checkpoint`` without the build's own smoke run: these tests compare with more."""
    output = folder / f"{checkpoint.name}-{layout}.bundle"
    build(BuildRequest(checkpoint, output, decoder_engine_layout=layout, verify=False))
    return output


def reference(checkpoint: Path) -> dict[str, Any]:
    """Return the parsed ``golden.json`` beside the checkpoint."""
    value: dict[str, Any] = json.loads((checkpoint / "golden.json").read_text(encoding="utf-8"))
    return value


def reference_cases(checkpoint: Path) -> list[GoldenCase]:
    """Return the reference's cases, each with 32 greedy tokens."""
    return [
        GoldenCase(
            case["kind"],
            tuple(case["prompt_ids"]),
            tuple(case["greedy_ids"]),
            tuple((token_id, logit) for token_id, logit in case["last_row_top5"]),
            case["smallest_top2_gap"],
        )
        for case in reference(checkpoint)["cases"]
    ]
