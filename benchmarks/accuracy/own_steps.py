"""Shipped predictions beside the steps that this project measured: `python -m benchmarks.accuracy.own_steps`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_time.measurements.repository import required_data_folder
from precision_time.measurements.row import Row
from precision_time.measurements.table import read_table
from precision_time.prediction import predict
from precision_time.report.errors import ErrorStatistics, labels
from precision_time.report.table import Table
from precision_time.report.write import write_whole
from precision_time.zoo.catalog import ENTRIES

NAME = "h100"
OUTPUT = Path("benchmarks/results/h100.md")
FIELDS = ("n", "mape", "median_ape", "signed_mean", "p90_ape", "coverage_p10_p90")


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured step beside its prediction: relative errors of time and of live memory, whether it is in P10-P90."""

    row: Row
    error: float
    inside: bool
    memory_error: float


def judge(tables: Path) -> list[Judged]:
    """Every step of the measured table, as `predict` answers for its job."""
    usage = (tables / "measured" / NAME / "usage.csv").open(newline="")
    with usage:
        allocated = [float(line["allocated_bytes"]) for line in csv.DictReader(usage)]
    found = []
    rows = read_table(tables / "measured" / f"{NAME}.csv").rows  # in the order of the folder's tables
    for number, (row, bytes_held) in enumerate(zip(rows, allocated, strict=True), 1):
        print(f"\r{number}/{len(rows)}", end="", file=sys.stderr, flush=True)
        if row.job is None:
            continue
        estimate = predict(row.job)
        inside = estimate.step.p10 <= row.measured_s <= estimate.step.p90
        memory_error = estimate.memory.allocated_bytes / bytes_held - 1.0
        found.append(Judged(row, estimate.step.p50 / row.measured_s - 1.0, inside, memory_error))
    print(file=sys.stderr)
    return found


def _has_images(row: Row) -> bool:
    return ENTRIES[row.model].has_images


def _is_timm(row: Row) -> bool:
    return row.model.startswith("timm:")


def _is_nhwc(row: Row) -> bool:
    return row.job is not None and row.job.memory_format == "nhwc"


GROUPS: Mapping[str, Callable[[Row], bool]] = {
    "all": lambda _row: True,
    "NCHW, and models without images": lambda row: not _is_nhwc(row),
    "NHWC": _is_nhwc,
    "networks of timm": _is_timm,
    "models of the zoo with images": lambda row: not _is_timm(row) and _has_images(row),
    "models of the zoo without images": lambda row: not _is_timm(row) and not _has_images(row),
}


def page(judged: Sequence[Judged]) -> str:
    """h100.md."""
    lines = []
    for name, test in GROUPS.items():
        chosen = [each for each in judged if each.row.trust != "C" and test(each.row)]
        times = ErrorStatistics.of([each.error for each in chosen], [each.inside for each in chosen])
        lines.append([name, *times.cells(FIELDS)])
    memory = ErrorStatistics.of([each.memory_error for each in judged])
    return f"""# Steps that this project measured on an H100

Written by `python -m benchmarks.accuracy.own_steps`; do not edit. Steps of `data/measured/{NAME}.csv` beside what
`predict` answers.

Times, rows of trust A and B (the GPU limits the step). The shipped factors are fitted with these rows, so this table
says how well they are described; held out by family and GPU they are in [unknown.md](unknown.md):

{Table(["steps", *labels(FIELDS)], lines, left=1).markdown()}

Live tensors at the fullest moment of a step, beside `torch.cuda.max_memory_allocated`, all rows, which no fit has seen:

{Table(["steps", *labels(FIELDS[:-1])], [["all", *memory.cells(FIELDS[:-1])]], left=1).markdown()}
"""


def main() -> int:
    """Write the page; returns the exit code."""
    write_whole(OUTPUT, page(judge(required_data_folder())).encode())
    print(OUTPUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
