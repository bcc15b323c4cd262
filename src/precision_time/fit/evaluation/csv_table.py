"""The judged rows as a CSV file, one line for every row of the table that was chosen."""

from __future__ import annotations

import csv
import io

from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.evaluation.evaluation import Evaluation, Unpredicted

COLUMNS = (
    "id", "measured_s", "p10_s", "p50_s", "p90_s", "error", "precision", "gpu", "gpus", "model", "family", "framework",
    "trust", "seen_by_fit", *(f"{term}_s" for term in BREAKDOWN_TERMS), "reason",
)  # fmt: skip


def sheet(evaluation: Evaluation) -> str:
    """The text of the file, in the order of the table; a row without prediction has its reason instead."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    every: list[Judged | Unpredicted] = [*evaluation.judged, *evaluation.unpredicted]
    for each in sorted(every, key=lambda one: one.row.line):
        row = each.row
        cells = {
            "id": row.id,
            "measured_s": row.measured_s if row.measured_s == row.measured_s else "",  # not a number: not measured
            **{name: getattr(row, name) for name in ("precision", "gpu", "gpus", "model", "family", "framework")},
            "trust": row.trust,
        }
        if isinstance(each, Unpredicted):
            cells["reason"] = each.reason
        else:
            cells |= {"p10_s": each.step.p10, "p50_s": each.step.p50, "p90_s": each.step.p90, "error": each.error}
            cells["seen_by_fit"] = str(each.seen).lower()
            cells |= {f"{term}_s": each.breakdown.get(term, 0.0) for term in BREAKDOWN_TERMS}
        writer.writerow(cells)
    return out.getvalue()
