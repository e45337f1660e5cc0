"""Import OpenVINO without its telemetry, and say what the processor can do in it.

``import openvino`` writes below ``~/intel`` and reports the import over the network where the package
openvino-telemetry is installed, which its wheel requires. Whoever builds or runs a bundle has not asked for that, so
that package cannot be found while OpenVINO is imported here; OpenVINO then takes a stand-in of its own. A program that
imports OpenVINO itself first has it as it likes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_TELEMETRY_PACKAGE = "openvino_telemetry"

DEVICE = "CPU"


def import_openvino() -> Any:
    """Return the module ``openvino``; raise ImportError when it is not installed."""
    if "openvino" in sys.modules or _TELEMETRY_PACKAGE in sys.modules:
        return importlib.import_module("openvino")
    modules: dict[str, Any] = sys.modules
    modules[_TELEMETRY_PACKAGE] = None
    try:
        return importlib.import_module("openvino")
    finally:
        del modules[_TELEMETRY_PACKAGE]


def plain_version(version: str) -> str:
    """Return ``2026.4.1`` for ``2026.4.1-22982-e213a147257-releases/2026/4``."""
    return version.partition("-")[0]


def has_bfloat16_products(core: Any) -> bool:
    """Tell whether the processor multiplies bfloat16 numbers; OpenVINO widens them to float32 where it does not."""
    return "BF16" in core.get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
