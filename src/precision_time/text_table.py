"""Former place of tables of plain text; use `precision_time.report.table`."""

from __future__ import annotations

from collections.abc import Sequence

from precision_time.report.table import Table


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """`Table(heads, rows, left).text()`."""
    return Table(heads, rows, left).text()
