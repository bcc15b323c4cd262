"""The board that the server shows (`GET /v1/board`): tables of the committed pages as data of the package.

    python -m benchmarks.accuracy.served_board      after a page of benchmarks/results was written

`python -m benchmarks.accuracy` calls it at its end. Nothing is computed here, so that page and server cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.report.write import compact_json
from precision_time.shipped import ROOT, write_shipped

DATA = "serve/http/data/board.json"
_COLUMNS = {"rows": "rows", "MAPE": "mean error", "median": "median", "P90": "P90", "in P10-P90": "in P10-P90"}
"""Columns of the pages that are shown -> their names."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """A table of a page, by its heading."""

    page: str
    heading: str
    title: str
    first: str
    """Name of its first column."""


_CHOICES = (
    _Choice("accuracy.md", "Three ways to hold rows out", "Published training steps, by what was held out", "held out"),
    _Choice("accuracy.md", "By precision", "By precision, held out by model family", "precision"),
    _Choice("accuracy.md", "By GPU", "By GPU, held out by model family", "GPU"),
    _Choice("accuracy.md", "By model family", "By model family, held out by model family", "model family"),
    _Choice("large-models.md", "Held out by model", "Large models, held out by model", "measured"),
)


def board(results: Path) -> dict[str, Any]:
    """The tables as `{title, heads, rows}`, cells as text. Raises `DataError` where a page has not its table."""
    tables = [_table(results / choice.page, choice) for choice in _CHOICES]
    return {"source": "benchmarks/results/accuracy.md and large-models.md, written by make board", "tables": tables}


def _table(path: Path, choice: _Choice) -> Mapping[str, Any]:
    text = path.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {choice.heading}\n")
    section = rest.partition("\n## ")[0]
    lines = [_cells(line) for line in section.splitlines() if line.startswith("|")]
    if not found or len(lines) < 3:
        raise DataError(f"{path.name} has no table under {choice.heading!r}; run make board")
    heads, _, *rows = lines
    shown = [place for place, head in enumerate(heads) if head in _COLUMNS]
    trusted = heads.index("trust") if "trust" in heads else None
    return {
        "title": choice.title,
        "heads": [choice.first, *(_COLUMNS[heads[place]] for place in shown)],
        "rows": [
            [_plain(row[0]), *(row[place] for place in shown)]
            for row in rows
            if trusted is None or row[trusted] != "all"
        ],
    }


def _cells(line: str) -> Sequence[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _plain(text: str) -> str:
    """Without bold marks and "held out by"."""
    return re.sub(r"^held out by ", "", text.strip("*"))


def write(results: Path) -> None:
    """Write the data file of the package, and its digest."""
    write_shipped(ROOT / DATA, compact_json(board(results)) + "\n")


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "results")
