"""Decide which section names are safe to read, which are fit to write, and in which order they are written.

Readers refuse only what could do harm, because containers of other writers are to be read too; what this
project writes, and what its validator demands, also opens on every file system when unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_NAME = 128
MAX_LEVELS = 3

# What decides compatibility comes first, so that the first MiB of a file tells whether it can be used.
# Sections not named here (tokenizer files, and what later versions add) go by name between the two groups.
_LEADING = ("manifest.json", "runtime.json")
_CLOSING = (
    "engine.plan",
    "engine.onnx",
    "prefill.plan",
    "prefill.onnx",
    "weights.safetensors",
    "golden.msgpack.zst",
)

_PORTABLE_NAME = re.compile(r"[a-z0-9._/-]{1,128}")
_WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{digit}" for port in ("com", "lpt") for digit in range(1, 10)}
)


def unsafe_name_reason(name: str) -> str | None:
    """Return why a reader must not accept ``name``, or None when it is harmless.

    Harmful are names that could lead a program which unpacks sections out of its folder, or that cannot be
    shown: empty, longer than 128 characters, unprintable, absolute, with ``\\`` or ``:``, or with a part that
    is empty, ``.`` or ``..``.
    """
    if not name:
        return "it is empty"
    if len(name) > LONGEST_NAME:
        return f"it has {len(name)} characters, more than {LONGEST_NAME}"
    if not name.isprintable():
        return "it holds a control character"
    if "\\" in name or ":" in name:
        return "it holds a backslash or a colon"
    if name.startswith("/"):
        return "it is an absolute path"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "a part of it is empty, '.' or '..'"
    return None


def unportable_name_reason(name: str) -> str | None:
    """Return why a writer must not use ``name``, or None when it opens on every file system.

    Wanted: ``[a-z0-9._/-]{1,128}``, at most three levels, no part that Windows reserves for a device and none
    that ends in a dot.
    """
    reason = unsafe_name_reason(name)
    if reason is not None:
        return reason
    if _PORTABLE_NAME.fullmatch(name) is None:
        return "only a-z, 0-9, '.', '_', '-' and '/' are allowed"
    parts = name.split("/")
    if len(parts) > MAX_LEVELS:
        return f"it has {len(parts)} levels, more than {MAX_LEVELS}"
    for part in parts:
        if part.split(".")[0] in _WINDOWS_DEVICES:
            return f"{part!r} is a device name on Windows"
        if part.endswith("."):
            return f"{part!r} ends in a dot"
    return None


def case_twins(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that differ only in case, or None; unpacked, one would overwrite the other."""
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.casefold(), name)
        if twin != name:
            return twin, name
    return None


def section_order(name: str) -> tuple[int, str]:
    """Return the sort key that puts sections in the order of a written bundle."""
    if name in _LEADING:
        return _LEADING.index(name), name
    if name in _CLOSING:
        return len(_LEADING) + 1 + _CLOSING.index(name), name
    return len(_LEADING), name
