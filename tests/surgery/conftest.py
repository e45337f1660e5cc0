"""Engines of the two shipped checkpoints, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from model_engines import ModelEngines


@pytest.fixture(params=[True, False], ids=["free rows", "all rows"])
def free_rows(request: pytest.FixtureRequest) -> bool:
    """Whether a chunk computes the rows that a call has, or as many in every call."""
    return bool(request.param)


@pytest.fixture(scope="session")
def shipped_engines(
    tmp_path_factory: pytest.TempPathFactory, qwen_checkpoint: Path, rwkv_checkpoint: Path
) -> Callable[..., ModelEngines]:
    """Return a function (family, precision) → the engines of that family's shipped checkpoint."""
    checkpoints = {"qwen3_5": qwen_checkpoint, "rwkv": rwkv_checkpoint}
    made: dict[tuple[str, str], ModelEngines] = {}

    def engines(family: str, precision: str = "fp32") -> ModelEngines:
        key = (family, precision)
        if key not in made:
            made[key] = ModelEngines(checkpoints[family], tmp_path_factory.mktemp("engines"), precision)
        return made[key]

    return engines
