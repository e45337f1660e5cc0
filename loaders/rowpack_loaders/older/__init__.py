"""Describe bundles that were written before there was a manifest, as far as they can be described.

Three kinds are read: format 1 with ``runtime.json`` alone, the form of August 2026, and the one before it. Each gives
the few facts its loaders needed; :func:`describe_older` puts them into a manifest of today in which everything else
says that it is unknown.
"""

from __future__ import annotations

from rowpack_loaders.older.manifest import describe_older, is_older

__all__ = ["describe_older", "is_older"]
