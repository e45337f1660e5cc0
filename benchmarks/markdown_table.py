"""Lay out Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
    """Return a table whose first ``text_columns`` columns are text and whose others are figures, to the right.

    ``ValueError`` for a row of another length.
    """
    rule = ["---" if index < text_columns else "---:" for index in range(len(columns))]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"{len(row)} cells in a table of {len(columns)} columns: {row}")
    return "\n".join("| " + " | ".join(cells).rstrip() + " |" for cells in (columns, rule, *rows))


def megabytes(count: float) -> str:
    """Return bytes as whole MB (10⁶)."""
    return f"{count / 10**6:,.0f}"


def with_ratio(value: float, reference: float, digits: int = 1) -> str:
    """Return a value and how many times the reference it is."""
    return f"{value:,.{digits}f} (× {value / reference:.2f})"
