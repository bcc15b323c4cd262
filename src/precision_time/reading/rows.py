"""Rows of a CSV file, read one by one."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.reading.text import checked_text, named, opened, read_text

LARGEST_CSV = 128 * 2**20
"""Largest CSV file, in bytes; rows are streamed."""
LONGEST_ROW = 2**20
"""Most characters of one row, whose cells may have several lines."""


FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Beginning of a cell that a spreadsheet may run as a formula. Our tables put an apostrophe before it, which
`read_rows` takes away."""


class _Lines:
    """The lines of a file; each row may take `LONGEST_ROW` characters of them."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        self.number = 0
        self.left = LONGEST_ROW

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line: str = self._file.readline(self.left + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.left -= len(line)
        if self.left < 0:
            raise DataError(
                f"{self._name} has a row of more than {LONGEST_ROW:,} characters at line {self.number}; "
                "close its quotes"
            )
        return checked_text(line, self._name, self.number)


def read_rows(path: str | Path, kind: str = "table") -> Iterator[tuple[int, list[str]]]:
    """Line number (of the first of its lines) and cells of every row that is not blank; otherwise `DataError`."""
    name, line = named(kind, path), 1
    try:
        with opened(path, kind, LARGEST_CSV) as file:
            lines = _Lines(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), name)
            for cells in csv.reader(lines):
                if any(map(str.strip, cells)):
                    yield line, [cell[1:] if cell[:1] == "'" and FORMULA.match(cell) else cell for cell in cells]
                line, lines.left = lines.number + 1, LONGEST_ROW
    except UnicodeDecodeError:
        read_text(path, kind, LARGEST_CSV)  # raises the error with the right byte
        raise
    except csv.Error as error:
        raise DataError(f"{name} is not valid CSV at line {line}: {error}; correct that line") from None


def read_records(path: str | Path, needed: Iterable[str], kind: str = "table") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column of every row; a row lacking cells has "" there.

    Raises `DataError` where a column of `needed` is missing, a column is there twice or a row has too many cells.
    """
    name = named(kind, path)
    rows = read_rows(path, kind)
    _, heads = next(rows, (1, []))
    columns = [head.strip() for head in heads]
    if missing := [column for column in needed if column not in columns]:
        raise DataError(f"{name} has no column {missing[0]}; its first line must name the columns")
    if len(set(columns)) < len(columns):
        raise DataError(f"{name} has a column twice; keep one of them")
    for line, cells in rows:
        if len(cells) > len(columns):
            raise DataError(
                f"{name} line {line} has {len(cells)} cells for {len(columns)} columns; "
                "put quotes around a text that holds commas"
            )
        yield line, {**dict.fromkeys(columns, ""), **dict(zip(columns, cells, strict=False))}
