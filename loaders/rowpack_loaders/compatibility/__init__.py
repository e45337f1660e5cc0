"""Can a machine run a bundle: answered from the first MiB of the file, without opening an engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rowpack_loaders.compatibility.check import CompatibilityReport, check_bundle
    from rowpack_loaders.compatibility.target import Target
    from rowpack_loaders.compatibility.this_machine import target_here

__all__ = ["CompatibilityReport", "Target", "check_bundle", "target_here"]

# Loaded when used: loading a bundle needs what an engine asks for, and not how machines are described.
_HOMES = {"CompatibilityReport": "check", "check_bundle": "check", "Target": "target", "target_here": "this_machine"}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
