"""A table of text cells, written as aligned text, Markdown, HTML or CSV."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_time.reading.rows import FORMULA
from precision_time.report.printable import printable


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with what only HTML shows.

    `sort` is the number that orders the column when its heading is clicked, `markup` replaces the escaped text (the
    caller escapes it), `css` is the class of the cell.
    """

    text: str
    sort: float | None = None
    markup: str = ""
    css: str = ""

    def __str__(self) -> str:
        return self.text


class Table:
    """Columns and rows of cells. The first `left` columns are flush left, the others flush right.

    A row whose cells after the first are all empty is the heading of the rows below it. Raises `ValueError` for a row
    with another number of cells than there are columns.
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str | Cell]], left: int = 1) -> None:
        self.columns = tuple(columns)
        self.rows = tuple(tuple(row) for row in rows)
        self.left = left
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row {row!r} has {len(row)} cells for {len(self.columns)} columns")

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Columns padded to their widest cell, under a rule of dashes."""
        lines = [tuple(printable(str(cell)) for cell in line) for line in (self.columns, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, tuple("-" * width for width in widths))
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < self.left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table."""
        rule = ["---"] * self.left + ["---:"] * (len(self.columns) - self.left)
        lines = [map(_markdown_cell, self.columns), rule, *(map(_markdown_cell, row) for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self, css: str = "", element_id: str = "", row_ids: Sequence[str] = ()) -> str:
        """An escaped <table> inside a <div> that scrolls when the table is wide.

        `css` and `element_id` are class and id of the table, `row_ids` the ids of its rows. Columns after the first
        `left` are flush right.
        """
        head = "".join(f"<th{self._class(i)}>{html.escape(name)}</th>" for i, name in enumerate(self.columns))
        names = _attribute("class", css) + _attribute("id", element_id)
        lines = [
            self._html_row(row, _attribute("id", row_id))
            for row, row_id in zip(self.rows, row_ids or [""] * len(self.rows), strict=True)
        ]
        body = "\n".join(lines)
        return f'<div class="wide"><table{names}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'

    def _html_row(self, row: Sequence[str | Cell], name: str) -> str:
        if len(row) > 1 and not any(map(str, row[1:])):
            return f'<tr class="group"{name}><td colspan="{len(row)}">{html.escape(str(row[0]))}</td></tr>'
        return f"<tr{name}>{''.join(self._html_cell(i, cell) for i, cell in enumerate(row))}</tr>"

    def _html_cell(self, column: int, cell: str | Cell) -> str:
        if isinstance(cell, str):
            return f"<td{self._class(column)}>{html.escape(cell)}</td>"
        sort = "" if cell.sort is None else f' data-v="{cell.sort:.6g}"'
        return f"<td{self._class(column, cell.css)}{sort}>{cell.markup or html.escape(cell.text)}</td>"

    def _class(self, column: int, css: str = "") -> str:
        return _attribute("class", " ".join(filter(None, ("text" if column < self.left else "", css))))

    def csv(self) -> str:
        """Comma-separated values with a header line. Text that a spreadsheet would run as a formula is disarmed."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(csv_cell, self.columns))
        writer.writerows([csv_cell(str(cell)) for cell in row] for row in self.rows)
        return out.getvalue()


def csv_cell(text: str) -> str:
    """The text, after an apostrophe where a spreadsheet would take it for a formula.

    Formulas begin with = + - @ (also in full width), a tab or a line end (OWASP, "CSV Injection"). Numbers keep their
    sign. Text that begins with an apostrophe before such a character gets another one, so that `reading.read_rows`
    gives back every text.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # csv does not quote a lone carriage return
    return f"'{text}" if FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def csv_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV of the rows' values under the columns, with a header line; a value that a row lacks is empty."""
    cells = (["" if row.get(column) is None else str(row[column]) for column in columns] for row in rows)
    return Table(columns, cells).csv()


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _markdown_cell(cell: str | Cell) -> str:
    text = re.sub(r"(\\*)\|", r"\1\1\|", str(cell))  # a backslash before the escaped bar would free it
    return " ".join(text.splitlines()) if text else ""


def _attribute(name: str, value: str) -> str:
    return f' {name}="{html.escape(value)}"' if value else ""
