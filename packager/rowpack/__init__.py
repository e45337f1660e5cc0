"""Turn a Hugging Face checkpoint of a recurrent or hybrid language model into one self-describing bundle.

``build(BuildRequest(checkpoint, output))`` does the whole job. The names are loaded when they are first used,
so that ``import rowpack`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.version import __version__

if TYPE_CHECKING:
    from rowpack.build_report import BuildReport
    from rowpack.build_stages import build
    from rowpack.model_preparation import BuildRequest

__all__ = ["BuildReport", "BuildRequest", "RowpackError", "__version__", "build"]

# No module may be called like one of these names: importing it would put the module in the name's place.
_HOMES = {
    "BuildReport": "rowpack.build_report",
    "BuildRequest": "rowpack.model_preparation",
    "build": "rowpack.build_stages",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
