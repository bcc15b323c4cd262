"""The evaluated rows as CSV, one line for every chosen row of the table."""

from __future__ import annotations

from collections.abc import Iterator

from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.evaluation.evaluation import Evaluation, Unpredicted
from precision_time.evaluation.rows import JudgedRow
from precision_time.report.table import Table

COLUMNS = (
    "id", "measured_s", "p10_s", "p50_s", "p90_s", "error", "precision", "gpu", "gpus", "model", "family", "framework",
    "trust", "seen_by_fit", *(f"{term}_s" for term in BREAKDOWN_TERMS), "reason",
)  # fmt: skip


def csv_parts(evaluation: Evaluation) -> Iterator[str]:
    """The text of the file in parts, in the order of the table; a row without a prediction has a reason instead."""
    rows: list[JudgedRow | Unpredicted] = [*evaluation.judged, *evaluation.unpredicted]
    rows.sort(key=lambda each: each.row.line)
    yield Table(COLUMNS, []).csv()
    for first in range(0, len(rows), _AT_ONCE):
        cells = [_cells(row) for row in rows[first : first + _AT_ONCE]]
        text = Table(COLUMNS, [[str(each.get(column, "")) for column in COLUMNS] for each in cells]).csv()
        yield text.partition("\n")[2]


_AT_ONCE = 1000
"""Rows of a part: the whole text of a large table would take more memory than its rows."""


def _cells(result: JudgedRow | Unpredicted) -> dict[str, object]:
    row = result.row
    cells: dict[str, object] = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)}
    if row.measured_s != row.measured_s:  # not a number: not measured
        cells["measured_s"] = ""
    if isinstance(result, Unpredicted):
        return cells | {"reason": result.reason}
    terms = {f"{term}_s": result.breakdown.get(term, 0.0) for term in BREAKDOWN_TERMS}
    step = {"p10_s": result.step.p10, "p50_s": result.step.p50, "p90_s": result.step.p90, "error": result.error}
    return cells | step | terms | {"seen_by_fit": str(result.seen).lower(), "reason": ""}
