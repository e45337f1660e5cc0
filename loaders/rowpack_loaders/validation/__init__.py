"""Check a whole bundle: container, manifest, cross-references, sections, digests, trailer, golden vectors."""

from __future__ import annotations

from rowpack_loaders.validation.report import Report
from rowpack_loaders.validation.runner import validate

__all__ = ["Report", "validate"]
