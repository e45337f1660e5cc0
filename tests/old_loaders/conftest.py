"""The tiny bundles, for the tests of this folder."""

from __future__ import annotations

from tiny_fixtures import tiny_bundles, tiny_checkpoints

__all__ = ["tiny_bundles", "tiny_checkpoints"]
