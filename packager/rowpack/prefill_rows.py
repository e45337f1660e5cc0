"""How many prompt rows one prefill call may take."""

from __future__ import annotations

from rowpack_loaders.errors import RowpackError

MAX_PREFILL_ROWS = 64


def check_prefill_rows(prefill_rows: int) -> None:
    """Raise RowpackError ``prefill_rows_range`` for a number of rows that no prefill engine takes."""
    if not 1 <= prefill_rows <= MAX_PREFILL_ROWS:
        raise RowpackError(
            "prefill_rows_range",
            "a prefill engine cannot have this many rows",
            where="--prefill-rows",
            found=str(prefill_rows),
            expected=f"1 to {MAX_PREFILL_ROWS}",
            remedy=f"{MAX_PREFILL_ROWS} is the default and the fastest.",
        )
