"""Sizes and durations as people write and read them."""

from __future__ import annotations

import re

from rowpack_loaders.errors import RowpackError

_MULTIPLIERS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``500 MB`` or ``1048576`` as a number of bytes.

    Decimal units count in thousands, the ``i`` units in 1024s, a bare number is bytes. Raises
    ``RowpackError`` with code ``bad_size`` when the text is no size or is zero.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    size_bytes = int(float(match[1]) * _MULTIPLIERS[match[2]]) if match and match[2] in _MULTIPLIERS else 0
    if size_bytes <= 0:
        raise RowpackError(
            "bad_size",
            "this is not a memory size",
            found=repr(text),
            expected="a number above zero with a unit, such as 24GiB or 500MB",
            remedy="Write the size as a number of bytes, or with a unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB.",
        )
    return size_bytes


def format_bytes(byte_count: int) -> str:
    """Write a number of bytes with a decimal unit and three significant digits: ``17.5 MB``."""
    if byte_count < 1000:
        return f"{byte_count} B"
    value = float(byte_count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration: ``0.42 s``, ``12.3 s``, ``3 min 05 s``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
