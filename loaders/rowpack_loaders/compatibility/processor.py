"""Read which instructions this machine's processor has, by the names that manifests use."""

from __future__ import annotations

from pathlib import Path

BFLOAT16_FEATURE = "avx512_bf16"
"""Products of bfloat16 numbers; every processor with AMX has it too."""

_PROCESSOR_TABLE = Path("/proc/cpuinfo")
_KEYS = ("flags", "Features")  # x86-64 and AArch64


def processor_features(table: Path = _PROCESSOR_TABLE) -> frozenset[str] | None:
    """Return the instruction sets that Linux lists for the first processor; None where the system does not say."""
    try:
        text = table.read_text("utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() in _KEYS:
            return frozenset(value.split())
    return None
