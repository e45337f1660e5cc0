"""Tiny bundles of both families and layouts, built once a run for all tests that want them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of each family."""
    from tiny_models import CONFIGS, tiny_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    return {family: tiny_checkpoint(family, folder / family) for family in CONFIGS}


@pytest.fixture(scope="session")
def tiny_bundles(
    tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Path]:
    """A bundle for each family and layout."""
    from tiny_models import BUILD_OPTIONS

    from rowpack import BuildRequest, build

    folder = tmp_path_factory.mktemp("bundles")
    return {
        (family, layout): build(
            BuildRequest(
                checkpoint, folder / f"{family}-{layout}.bundle", decoder_engine_layout=layout, **BUILD_OPTIONS
            )
        ).path
        for family, checkpoint in tiny_checkpoints.items()
        for layout in ("single", "split")
    }
