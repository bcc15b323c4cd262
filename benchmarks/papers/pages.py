"""Figures of docs/ernest.md and docs/additive.md: `python -m benchmarks.papers.pages`, half a minute.

Writes benchmarks/results/ernest_additive.json and, between the markers of both pages, the tables made of it. Nothing is
random, so that a test computes the file again. Ernest is judged on the largest share of the data of the real runs,
fitted to the smaller shares of the same job; the additive model on published steps, of which it has seen none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.papers.additive_errors import FIELDS, Judged, accuracy, precisions_of
from benchmarks.papers.ernest import ALL, evaluate, groups_of_runs, more_data
from benchmarks.speed import RESULTS, machine
from precision_time.errors import PrecisionTimeError
from precision_time.measurements.repository import LARGE_STEPS, STEPS, required_data_folder
from precision_time.predictors.additive import Additive
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.published import published_jobs
from precision_time.predictors.runs import read_runs
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.page import fill_markers
from precision_time.report.table import Table
from precision_time.report.write import write_whole

FILE = RESULTS / "ernest_additive.json"
DOCS = Path(__file__).parents[2] / "docs"


def ernest_figures(rows: Sequence[MeasuredJob]) -> dict[str, dict[str, Any]]:
    """Way to fit -> error statistics on the largest share of the data."""
    splits = more_data(groups_of_runs(rows))
    labelled = zip(("in seconds, as its authors", "in per cent (ours)"), ALL, strict=True)
    found = {}
    for label, way in labelled:
        judged = evaluate(splits, way).judged
        inside = [each.predicted.p10_s <= each.measured_s <= each.predicted.p90_s for each in judged]
        found[label] = ErrorStatistics.of([each.error for each in judged], inside).to_dict()
    return found


def additive_figures(rows: Sequence[MeasuredJob]) -> dict[str, dict[str, Any]]:
    """Precision -> error statistics of the rows that the model can predict, with `rows_given` of all."""
    model = Additive()
    model.fit(rows)
    judged = []
    for row in rows:
        seconds = {}
        with suppress(PrecisionTimeError):  # a layout or a GPU that it does not know
            seconds["additive"] = model.predict(row.job).seconds
        judged.append(Judged(row, seconds))
    found = {}
    for name in ("all", *precisions_of(judged)):
        given = sum(name in ("all", each.measured.precision) for each in judged)
        found[name] = {**accuracy(judged, "additive", name).to_dict(), "rows_given": given}
    return found


def blocks(content: Mapping[str, Any]) -> dict[str, str]:
    """Page -> what stands between its markers."""
    fields = (*FIELDS, "coverage_p10_p90")
    date = f"{content['machine']['date']}, `python -m benchmarks.papers.pages`."
    ernest = Table(
        ("fitted", *labels(fields)), [(name, *_cells(each, fields)) for name, each in content["ernest"].items()]
    )
    lines = [
        (table, name, str(each["rows_given"]), *_cells(each, FIELDS))
        for table, found in content["additive"].items()
        for name, each in found.items()
    ]
    additive = Table(("rows of", "precision", "given", "predicted", *labels(FIELDS)[1:]), lines, left=2)
    return {"ernest": f"{ernest.markdown()}\n\n{date}", "additive": f"{additive.markdown()}\n\n{date}"}


def _cells(each: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    return ErrorStatistics(**{k: v for k, v in each.items() if k != "rows_given"}).cells(fields)


def main() -> None:
    """Compute the figures, write the file and fill the pages."""
    data = required_data_folder()
    tables = {str(path.name): published_jobs(data / path) for path in (STEPS, LARGE_STEPS)}
    content: dict[str, Any] = {
        "machine": machine(),
        "ernest": ernest_figures(read_runs(None)),
        "additive": {name: additive_figures(rows) for name, rows in tables.items()},
    }
    write_whole(FILE, json.dumps(content, indent=1) + "\n")
    for page, text in blocks(content).items():
        path = DOCS / f"{page}.md"
        write_whole(path, fill_markers(path.read_text(encoding="utf-8"), "figures", text, str(path)))


if __name__ == "__main__":
    main()
