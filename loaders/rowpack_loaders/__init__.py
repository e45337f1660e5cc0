"""Read, check and run rowpack bundles.

Importing this package is cheap: every public name is loaded when it is first used, and none needs more than
numpy and the one runtime of the bundle's backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rowpack_loaders.version import __version__

if TYPE_CHECKING:
    from rowpack_loaders.bundle import Bundle, open_bundle
    from rowpack_loaders.decoder import load
    from rowpack_loaders.errors import Problem, RowpackError
    from rowpack_loaders.validation import Report, validate

__all__ = ["Bundle", "Problem", "Report", "RowpackError", "__version__", "load", "open_bundle", "validate"]

_HOMES = {
    "Bundle": "rowpack_loaders.bundle",
    "Problem": "rowpack_loaders.errors",
    "Report": "rowpack_loaders.validation",
    "RowpackError": "rowpack_loaders.errors",
    "load": "rowpack_loaders.decoder",
    "open_bundle": "rowpack_loaders.bundle",
    "validate": "rowpack_loaders.validation",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
