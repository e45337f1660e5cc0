"""The two trained models in both forms, made once."""

from __future__ import annotations

import pytest
from pretended_bundles import CHECKPOINTS, PretendedModel, make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PretendedModel]:
    """Both families in float32."""
    return {family: make_model(path, tmp_path_factory.mktemp(family)) for family, path in CHECKPOINTS.items()}
