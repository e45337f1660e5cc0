"""Random checkpoints of any published shape, for tests and benchmarks where the real ones cannot be had."""

from __future__ import annotations

from rowpack.synthesis.published_shapes import PUBLISHED_SHAPES, published_config
from rowpack.synthesis.synthesize import SyntheticCheckpoint, synthesize

__all__ = ["PUBLISHED_SHAPES", "SyntheticCheckpoint", "published_config", "synthesize"]
