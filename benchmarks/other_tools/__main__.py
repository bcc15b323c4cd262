"""The command `python -m benchmarks.other_tools`: compare, and write the report."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.other_tools.comparison import MFU, OURS, TEXTBOOK, UNFITTED, compare_all, source_of
from precision_time.fit.layouts import FACTORS
from precision_time.measurements.repository import LARGE_STEPS, required_data_folder
from precision_time.measurements.table import read_table
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.table import Table

RESULTS = Path(__file__).parents[1] / "results"
_FIELDS = ("n", "mape", "median_ape", "signed_mean")


def report(result: Mapping[str, Any]) -> str:
    """The page other_tools.md."""
    lines = ["# Beside other tools", ""]
    for tool in result["tools"]:
        lines.append(f"- **{tool['name']}** ({tool['home']}): {tool['status']}.")
        lines.append(f"  It can express {tool['expressible']} of {result['rows']} rows.")
        lines += [f"  - {count} rows: {reason}" for reason, count in tool["reasons"].items()]
    for title, sources in result["comparisons"].items():
        rows = [
            (source, name, *ErrorStatistics(**statistics).cells(_FIELDS))
            for source, predictors in sources.items()
            for name, statistics in predictors.items()
        ]
        table = Table(["rows of", "predictor", *labels(_FIELDS)], rows, left=2).markdown()
        lines += ["", f"## {title}", "", table if rows else "There is no row for which all of them have an answer."]
    lines += [
        "",
        f"error = predicted / measured - 1. {OURS}: `predict` as shipped, P50, never corrected by the job itself; "
        f"{result['seen']} of its {result['predicted']} predicted rows were in the fit of its {len(FACTORS)} factors "
        f"of layouts (held out: benchmarks/results/large-models.md). {UNFITTED}: with the factors before any row was "
        f"seen, which is the fair figure beside another tool. {TEXTBOOK}: 6 N D / ({MFU} x dense peak x GPUs), dense "
        f"models only; the share {MFU} is fixed, not fitted, and recomputation is not counted.",
        "",
        f"{result['date']}, {result['table']} ({result['rows']} rows); python {result['python']}: "
        "`python -m benchmarks.other_tools`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?", help="measured jobs (default: the large models of data/)")
    parser.add_argument("--calculon", type=Path, help="a checkout of github.com/calculon-ai/calculon; its code is run")
    parser.add_argument("--simumax", type=Path, help="a checkout of github.com/MooreThreads/SimuMax; its code is run")
    parser.add_argument("--rows", type=Path, help="write every row to this CSV file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the report")
    options = parser.parse_args()
    table = options.table or required_data_folder() / LARGE_STEPS
    rows = [row for row in read_table(table).rows if row.measured_s > 0]
    checkouts = {
        name: path and path.resolve() for name, path in (("Calculon", options.calculon), ("SimuMax", options.simumax))
    }
    result, seconds = compare_all(rows, checkouts)
    result["table"] = table.name
    text = report(result)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "other_tools.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.results / "other_tools.md").write_text(text, encoding="utf-8")
    if options.rows:
        with options.rows.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "source", "measured_s", *seconds])
            for row in rows:
                times = (by_row.get(row.id, "") for by_row in seconds.values())
                writer.writerow([row.id, source_of(row), row.measured_s, *times])
    return 0


if __name__ == "__main__":
    sys.exit(main())
