"""Write bundles: the streaming writer and the trailer."""

from __future__ import annotations

from rowpack.bundle.writer import BundleWriter, FinishedBundle

__all__ = ["BundleWriter", "FinishedBundle"]
