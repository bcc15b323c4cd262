"""Rows of words as a table of plain text."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns padded to their widest cell; the first `left` flush left, the others flush right."""
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]
    lines = []
    for line in (heads, tuple("-" * width for width in widths), *rows):
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
