"""Errors of predictions against real training on this machine: `python -m benchmarks.verify`.

Runs `precision-time verify` (about ten minutes) `--times` times and adds the results to benchmarks/results/verify.json
and verify.md. Results are added and never replaced, so that none is selected; remove both files when the code has
changed. Run nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_time.cli.progress import Progress
from precision_time.measure.calibrate import DEFAULT_BUDGET_S, Machine
from precision_time.measure.rounds import Rounds
from precision_time.measure.verify import Verification, jobs_here, verify
from precision_time.report.table import Table

RESULTS = Path(__file__).parent / "results"


def run_verify(here: Machine) -> Verification:
    """One calibration and verification of the default jobs."""
    jobs = jobs_here(here, [])
    with Progress("points") as progress:
        rounds = Rounds(here, jobs, DEFAULT_BUDGET_S, progress)
    with Progress("runs") as progress:
        return verify(jobs, here, rounds.catalog(), report=progress, again=rounds.again)


def report(readings: Sequence[Mapping[str, Any]]) -> str:
    """The errors of each job in every reading, and the noise of the machine."""
    lines = ["# verify: predicted against really trained", ""]
    table = []
    for rows in zip(*(each["rows"] for each in readings), strict=True):
        errors = [row["error"] for row in rows]
        cells = [rows[0]["job"]["model"], rows[0]["precision"], f"{rows[0]['ranks']}"]
        cells += [", ".join(f"{row['measured_s']:.3g} s" for row in rows)]
        cells += [", ".join(f"{row['run_spread']:.0%}" for row in rows)]
        cells += [", ".join(f"{error:+.1%}" for error in errors), f"{statistics.median(errors):+.1%}"]
        table.append(cells)
    columns = ["job", "precision", "ranks", "measured", "runs differ", "errors", "median error"]
    lines += [
        Table(columns, table, left=2).markdown(),
        "",
        "Each reading is a fresh calibration and three runs of every job, in turns with the operators of the jobs.",
    ]
    lines += ["Measured is the median of the three.", ""]
    for number, each in enumerate(readings, 1):
        versions = ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        lines.append(
            f"{number}. {each['date']}, {each['machine']}; {versions}. Mean error {each['mape']:.1%}, largest "
            f"{each['max_ape']:.1%}; equal measurements differ by {each['noise']:.0%}."
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="calibrate and verify so many times (default 1)")
    options = parser.parse_args()
    here, path = Machine.here(), RESULTS / "verify.json"
    readings: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for _ in range(options.times):
        verification = run_verify(here)
        print(verification, file=sys.stderr)
        readings.append({"date": datetime.date.today().isoformat(), **verification.to_dict()})
        RESULTS.mkdir(exist_ok=True)
        path.write_text(json.dumps(readings, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "verify.md").write_text(report(readings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
