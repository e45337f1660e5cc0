"""Plain aligned text, without a library that takes longer to import than the command takes to run."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], *, right_aligned: Sequence[int] = (), indent: int = 2) -> str:
    """Return ``rows`` as lines with columns of equal width, two spaces apart.

    Columns whose index is in ``right_aligned`` end at the same place, the others begin there. Lines carry no
    trailing spaces.
    """
    widths = [max(len(row[column]) for row in rows if column < len(row)) for column in range(max(map(len, rows)))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(widths[column]) if column in right_aligned else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def format_facts(facts: Sequence[tuple[str, str]], *, indent: int = 0) -> str:
    """Return ``name  value`` lines."""
    return format_table(facts, indent=indent)


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 layer``, ``4,096 layers``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
