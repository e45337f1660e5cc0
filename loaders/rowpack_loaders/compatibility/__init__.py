"""Can a machine run a bundle: answered from the first MiB of the file, without opening an engine."""

from __future__ import annotations

from rowpack_loaders.compatibility.check import CompatibilityReport, check_bundle
from rowpack_loaders.compatibility.target import Target
from rowpack_loaders.compatibility.this_machine import target_here

__all__ = ["CompatibilityReport", "Target", "check_bundle", "target_here"]
