"""How many published language-model jobs are predicted to fit in memory: `python -m benchmarks.memory` (a minute).

All of these jobs ran. The micro-batches of llm-foundry were chosen as large as possible, so most of its jobs should not
fit with twice the micro-batch. --csv FILE writes predicted peak memory over capacity of every row.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter

from precision_time.errors import PrecisionTimeError
from precision_time.largest_batch import memory_of
from precision_time.measurements.repository import LARGE_STEPS, required_data_folder
from precision_time.measurements.table import read_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="measured jobs (default: the large models of data/)")
    parser.add_argument("--csv", help="write id and pressure (peak over capacity) of every row")
    options = parser.parse_args()
    rows: Counter[str] = Counter()
    fit: Counter[str] = Counter()
    too_large_doubled: Counter[str] = Counter()
    pressures: list[tuple[str, str, float]] = []
    for row in read_table(options.table or required_data_folder() / LARGE_STEPS).rows:
        if row.job is None:
            continue
        try:
            memory = memory_of(row.job)
            doubled = memory_of(row.job.replace(batch_size=2 * (row.job.batch_size or 1)))
        except PrecisionTimeError as error:
            print(f"left out: {row.id}: {error}")
            continue
        rows[row.framework] += 1
        fit[row.framework] += memory.fits
        too_large_doubled[row.framework] += not doubled.fits
        pressures.append((row.id, row.framework, memory.pressure))
        if not memory.fits:
            print(f"does not fit: {row.id}, {memory.pressure:.2f} of its memory")
    for name, count in rows.items():
        print(f"{name}: {fit[name]} of {count} fit, {too_large_doubled[name]} would not with twice the micro-batch")
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [("id", "framework", "pressure"), *((i, f, f"{p:.4f}") for i, f, p in pressures)]
            )


if __name__ == "__main__":
    main()
