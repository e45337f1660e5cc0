"""Small random checkpoints and bundles built from them, once a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from random_models import BuildBundle, Synthesize

from rowpack import BuildRequest, build
from rowpack.synthesis import synthesize


@pytest.fixture
def random_checkpoint(tmp_path: Path) -> Synthesize:
    """Make a random checkpoint of a small config; options as for ``synthesize``."""

    def make(config: Mapping[str, Any], name: str = "checkpoint", **options: Any) -> Path:
        return synthesize(config, tmp_path / name, **options).folder

    return make


@pytest.fixture
def build_bundle(tmp_path: Path) -> BuildBundle:
    """Build a bundle below the test's folder and return its path."""

    def make(checkpoint: Path, name: str = "out.bundle", **options: Any) -> Path:
        return build(BuildRequest(checkpoint, tmp_path / name, **options)).path

    return make
