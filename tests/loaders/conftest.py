"""Toy decoders, loaded once: the hybrid model as a split and as a single bundle, and the recurrent one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy_models import HYBRID, RECURRENT, ToyModel, write_toy_bundle

from rowpack_loaders import load
from rowpack_loaders.decoder import Decoder


def _load(factory: pytest.TempPathFactory, model: ToyModel) -> Iterator[Decoder]:
    with load(write_toy_bundle(factory.mktemp("toy") / "toy.bundle", model), threads=1) as decoder:
        yield decoder


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """A split bundle with a recurrent state and a key/value cache of 256 rows."""
    yield from _load(tmp_path_factory, HYBRID)


@pytest.fixture(scope="session")
def hybrid_single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """The same model as a single bundle."""
    yield from _load(tmp_path_factory, ToyModel(split=False))


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoder]:
    """A split bundle that has a recurrent state only, so no input but token ids and no longest sequence."""
    yield from _load(tmp_path_factory, RECURRENT)
