"""Import ONNX Runtime without its telemetry.

From 1.32 on the wheels for Linux open a database under ``~/.cache/Microsoft`` when they are imported and report usage
over the network. Whoever builds or runs a bundle has not asked for that, so it is switched off first;
``ORT_DISABLE_TELEMETRY=0`` in the environment leaves it as it is.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"


def import_onnxruntime() -> Any:
    """Return the module ``onnxruntime``; raise ImportError when it is not installed."""
    os.environ.setdefault(TELEMETRY_SWITCH, "1")
    onnxruntime = importlib.import_module("onnxruntime")
    if os.environ[TELEMETRY_SWITCH] != "0":
        # The switch is read once, by the first import, which another part of the program may have made.
        onnxruntime.disable_telemetry_events()
    return onnxruntime
