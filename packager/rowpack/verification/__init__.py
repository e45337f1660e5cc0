"""The smoke run before publishing: sequential = token loop = chunks, and the golden vectors that come of it."""

from __future__ import annotations

from rowpack.verification.smoke import SmokeResult, tolerance, verify_engines

__all__ = ["SmokeResult", "tolerance", "verify_engines"]
