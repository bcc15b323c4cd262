"""Which published language-model jobs, all of which ran, are predicted to fit, and which would with twice the batch.

python benchmarks/memory.py measurements_llm.csv [--csv pressure.csv]     (about a minute)

llm-foundry's micro-batches were chosen by hand as large as they would go, so most of theirs should not fit doubled.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter

from precision_time.errors import PrecisionTimeError
from precision_time.largest_batch import memory_of
from precision_time.measurements.table import read_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--csv", help="write id and pressure (peak over capacity) of every row")
    given = parser.parse_args()
    rows: Counter[str] = Counter()
    fit: Counter[str] = Counter()
    full: Counter[str] = Counter()
    lines: list[tuple[str, str, float]] = []
    for row in read_table(given.table).rows:
        if row.job is None:
            continue
        try:
            found = memory_of(row.job)
            doubled = memory_of(row.job.replace(batch_size=2 * (row.job.batch_size or 1)))
        except PrecisionTimeError as error:
            print(f"left out: {row.id}: {error}")
            continue
        rows[row.framework] += 1
        fit[row.framework] += found.fits
        full[row.framework] += not doubled.fits
        lines.append((row.id, row.framework, found.pressure))
        if not found.fits:
            print(f"does not fit: {row.id}, {found.pressure:.2f} of its memory")
    for name, count in rows.items():
        print(f"{name}: {fit[name]} of {count} fit, {full[name]} would not with twice the micro-batch")
    if given.csv:
        with open(given.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("id", "framework", "pressure"), *((i, f, f"{p:.4f}") for i, f, p in lines)])


if __name__ == "__main__":
    main()
