"""How near predictions come to real training on this machine: `python benchmarks/verify.py`.

Calibrates, predicts and trains as `precision-time verify` does (about ten minutes), `--times` times over, and writes
benchmarks/results/verify.json and verify.md. Every time is kept, not the best one. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from precision_time.cli.progress import Progress
from precision_time.measure.calibrate import Machine, calibrate, catalog_of
from precision_time.measure.verify import Verification, jobs_here, verify

RESULTS = Path(__file__).parent / "results"


def once(here: Machine) -> Verification:
    jobs = jobs_here(here, [])
    with Progress("points") as progress:
        catalog = catalog_of(calibrate(here, report=progress, jobs=jobs).content)
    with Progress("runs") as progress:
        return verify(jobs, here, catalog, report=progress)


def report(found: Sequence[Verification]) -> str:
    """The errors of each job over the times, and each time as `verify` prints it."""
    lines = ["# verify: predicted against really trained", ""]
    lines += ["| job | precision | ranks | measured | errors | median error |", "|---|---|---:|---:|---|---:|"]
    for rows in zip(*(each.rows for each in found), strict=True):
        job, errors = rows[0].job, [row.error for row in rows]
        said = ", ".join(f"{error:+.0%}" for error in errors)
        seconds = f"{statistics.median(row.measured_s for row in rows):.3g} s"
        cells = [job.model, job.precision, f"{job.gpus}", seconds, said, f"{statistics.median(errors):+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    versions = ", ".join(f"{name} {version}" for name, version in found[0].versions.items())
    lines += ["", f"{datetime.date.today()}, {found[0].machine}; {versions}. `python benchmarks/verify.py`: a fresh "
              f"calibration and three runs of every job; {len(found)} in all."]  # fmt: skip
    for number, each in enumerate(found, 1):
        lines += ["", f"## Time {number}", "", "```", str(each), "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="calibrate and verify so many times (default 1)")
    given = parser.parse_args()
    here = Machine.here()
    found = []
    for _ in range(given.times):
        found.append(once(here))
        print(found[-1], file=sys.stderr)
    RESULTS.mkdir(exist_ok=True)
    content = {"date": datetime.date.today().isoformat(), "times": [each.to_dict() for each in found]}
    (RESULTS / "verify.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "verify.md").write_text(report(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
