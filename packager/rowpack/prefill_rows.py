"""How many prompt rows one prefill call may take."""

from __future__ import annotations

from rowpack_loaders.errors import RowpackError
from rowpack_loaders.manifest import MAX_PREFILL_ROWS

DEFAULT_PREFILL_ROWS = 64
"""Rows of a call that asks for no number: on a processor more rows are no faster (docs/command-line.md)."""


def check_prefill_rows(prefill_rows: int, most: int = MAX_PREFILL_ROWS, *, takes: str = "a manifest") -> None:
    """Raise RowpackError ``prefill_rows_range`` for a number of rows outside 1 to ``most``, what ``takes`` takes."""
    if not 1 <= prefill_rows <= most:
        raise RowpackError(
            "prefill_rows_range",
            "a prefill engine cannot have this many rows",
            where="--prefill-rows",
            found=str(prefill_rows),
            expected=f"1 to {most}, for {takes}",
            remedy=f"Leave it out for {DEFAULT_PREFILL_ROWS}, or give a number in the range.",
        )
