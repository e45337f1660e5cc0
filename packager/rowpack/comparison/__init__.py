"""Say in words what differs between two bundles."""

from __future__ import annotations

from rowpack.comparison.bundles import Comparison, compare_bundles
from rowpack.comparison.difference import Difference

__all__ = ["Comparison", "Difference", "compare_bundles"]
