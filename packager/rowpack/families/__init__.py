"""The registry of model families: a family is found by its config, never by an if/elif chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rowpack.families.declaration import Family
from rowpack.families.qwen3_5 import Qwen35Family
from rowpack.families.rwkv4 import Rwkv4Family
from rowpack_loaders.errors import RowpackError

FAMILIES: tuple[Family, ...] = (Qwen35Family(), Rwkv4Family())


def find_family(config: Mapping[str, Any]) -> Family:
    """Return the family that claims ``config``; raises RowpackError ``family_unknown`` and lists the supported."""
    for family in FAMILIES:
        if family.claims(config):
            return family
    supported = ", ".join(f"{family.name} (model_type {' or '.join(family.model_types)})" for family in FAMILIES)
    raise RowpackError(
        "family_unknown",
        "no family claims this checkpoint",
        where="config.json#/model_type",
        found=f"model_type {config.get('model_type')!r}, architectures {config.get('architectures')!r}",
        expected=f"one of: {supported}",
        remedy="Only these families can be built.",
    )


def family_named(name: str) -> Family:
    """Return the family called ``name`` (the bundle's ``family``)."""
    return next(family for family in FAMILIES if family.name == name)
