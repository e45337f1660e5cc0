"""What the manifest says of a plan: what it runs on, and how it was compiled."""

from __future__ import annotations

import platform
from typing import Any

from rowpack.engines.options import DEFAULT_WORKSPACE_BYTES, EngineOptions
from rowpack.engines.tensorrt.flavour import Flavour
from rowpack.engines.tensorrt.library import Library


def plan_facts(
    flavour: Flavour, library: Library, options: EngineOptions, timing_cache_sha256: str | None
) -> dict[str, Any]:
    """Return ``target`` and ``builder_flags`` of the manifest's engine entry.

    ``target.sm`` lists the compute capabilities the plan was compiled for; ``hardware_compatibility`` widens that:
    ``ampere_plus`` to every one from 8.0 on, ``same_compute_capability`` to every GPU of the listed one. A plan runs
    on exactly ``backend_version`` unless it is ``version_compatible``, and then on later ones of the same major.
    """
    return {
        "target": {
            "os": flavour.systems(),
            "arch": [platform.machine()],
            "cpu_features": [],
            "sm": list(library.capabilities),
            "minimum_driver": None,
        },
        "builder_flags": {
            "strongly_typed": True,
            "tf32": False,
            "workspace_bytes": options.workspace_bytes or DEFAULT_WORKSPACE_BYTES,
            "hardware_compatibility": options.hardware_compatibility or "none",
            "version_compatible": options.version_compatible,
            "timing_cache_sha256": timing_cache_sha256,
        },
    }
