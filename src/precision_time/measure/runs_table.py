"""The table of measured passes, one row per configuration, and its data card."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.journal import Record
from precision_time.measure.calibrate import Machine, device_name
from precision_time.measure.machine import memory_bytes, versions
from precision_time.measure.whole_steps import COLUMNS
from precision_time.report.table import csv_rows
from precision_time.report.write import write_whole

if TYPE_CHECKING:
    from precision_time.measure.small_runs import Configuration

TABLE, CARD, DEVICE = "runs.csv", "README.md", "device.json"
RUN_COLUMNS = ("dataset", "samples", "pass_s", "spread", "repeats", "cost_s")
"""Columns beyond those of the measurement table; `pass_s`: median, `spread`: standard deviation of log(pass_s)."""


@dataclass(frozen=True, slots=True)
class RunsTable:
    """Content of a folder of measured passes."""

    folder: Path
    rows: int
    networks: int
    passes: int
    lacking: int
    """Passes for which the budget left no time."""
    spread: float
    refused: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "rows": self.rows,
            "networks": self.networks,
            "passes": self.passes,
            "lacking": self.lacking,
            "spread": self.spread,
            "refused": list(self.refused),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.folder}: {self.rows:,} rows of {self.networks} networks from {self.passes:,} passes; "
            f"repeats differ by {self.spread:.1%} (median)"
        ]
        if self.lacking:
            lines.append(f"{self.lacking:,} passes found no time; the same command again continues with them")
        if self.refused:
            lines.append(f"{len(self.refused):,} were refused, the first: {self.refused[0]}")
        lines.append(f"written: {TABLE}, {CARD}")
        return "\n".join(lines)


def write_table(
    folder: Path,
    here: Machine,
    head: Record,
    everything: Sequence[Configuration],
    records: Mapping[str, Record],
    lacking: int,
) -> RunsTable:
    """Write runs.csv and README.md from the records of these configurations."""
    refused = [f"{label}: {record['refused']}" for label, record in records.items() if "refused" in record]
    passes = {each.label: _repeats(each, records) for each in everything}
    rows = [_row(each, passes[each.label], here, head) for each in everything if passes[each.label]]
    write_whole(folder / TABLE, csv_rows([*COLUMNS, *RUN_COLUMNS], rows))
    spreads = [float(row["spread"]) for row in rows if row["spread"] != ""]
    table = RunsTable(
        folder,
        rows=len(rows),
        networks=len({row["model"] for row in rows}),
        passes=sum(len(p) for p in passes.values()),
        lacking=lacking,
        spread=statistics.median(spreads) if spreads else 0.0,
        refused=tuple(refused),
    )
    write_whole(folder / CARD, card(here, head, rows, records, table).encode())
    return table


def _repeats(each: Configuration, records: Mapping[str, Record]) -> list[Record]:
    prefix = f"{each.label} turn "
    return [r for label, r in records.items() if label.startswith(prefix) and "pass_s" in r]


def _row(each: Configuration, repeats: Sequence[Record], here: Machine, head: Record) -> dict[str, Any]:
    job = each.job()
    seconds = [float(r["pass_s"]) for r in repeats]
    median = statistics.median(seconds)
    steps = math.ceil(each.samples / (each.batch_size * each.workers))
    spread = statistics.stdev(math.log(s) for s in seconds) if len(seconds) > 1 else None
    return {
        "id": each.label,
        "source": "precision-time runs",
        "trust": "A",
        "framework": "pytorch",
        "execution": job.execution,
        "model": each.model,
        "model_config": f"classes={each.classes}",
        "input": f"image_size={each.image_size}",
        "batch_size": each.batch_size,
        "grad_accum": 1,
        "gpus": each.workers,
        "nodes": 1,
        "gpu": device_name(here),
        "system": "",
        "precision": each.precision,
        "parallelism": "dp",
        "optimizer": job.optimizer,
        "memory_format": job.memory_format,
        "step_time_s": float(f"{median / steps:.5g}"),
        "notes": f"torch {head['torch']}; {steps} steps with the loader",
        "dataset": each.dataset,
        "samples": each.samples,
        "pass_s": float(f"{median:.5g}"),
        "spread": "" if spread is None else float(f"{spread:.3g}"),
        "repeats": len(seconds),
        "cost_s": float(f"{sum(float(r['cost_s']) for r in repeats):.5g}"),
    }


def card(
    here: Machine, head: Record, rows: Sequence[Mapping[str, Any]], records: Mapping[str, Record], table: RunsTable
) -> str:
    """The folder's README: machine, versions, dates, counts, method, known faults and refusals."""
    days = sorted({r["at"][:10] for r in records.values() if "at" in r}) or ["never"]
    spreads = sorted(float(row["spread"]) for row in rows if row["spread"] != "")
    wide = spreads[int(0.9 * (len(spreads) - 1))] if spreads else 0.0
    steps = [round(float(row["pass_s"]) / float(row["step_time_s"])) for row in rows]
    lines = [
        "# Real runs of small networks",
        "",
        f"- machine: {head['machine']}, {memory_bytes() / 2**30:.0f} GiB; each worker has {here.threads} thread(s)",
        f"- measured on {' to '.join(dict.fromkeys((days[0], days[-1])))} with torch {head['torch']}, "
        f"Python {versions()['python']}",
        "- command: `precision-time runs` (resumable)",
        f"- {table.rows:,} rows of {table.networks} networks, {table.passes:,} passes in all, "
        f"{sum(float(row['cost_s']) for row in rows):,.0f} s with building and warm-up",
        f"- repeats: {_repeated(rows)}; those of a row differ by {table.spread:.1%} (median of `spread`), {wide:.1%} "
        "(its ninth decile)",
        "",
        *_shapes(rows),
        "",
        "One row is one configuration. `pass_s` is the median time of one pass over `samples` pictures, from the first "
        "batch asked for to the last update done, on the slowest worker: loader, forward, loss, backward, all-reduce, "
        "update. Model and optimizer are built anew each time and take "
        f"{head['warmup_steps']} warm-up steps, which are "
        "not in it. `step_time_s` is `pass_s` over its steps, `spread` the standard deviation of log(pass_s) over "
        "`repeats`, `cost_s` what all repeats took with building and "
        "warm-up. Parts of a training set are passes of their own, none is derived from another.",
        "",
        "Pictures are noise with random labels, in memory, taken by a `DataLoader` without worker processes. Several "
        "workers train with DistributedDataParallel (gloo over the loopback interface on a CPU, NCCL on GPUs). fp32, "
        "and amp-bf16: autocast to bfloat16.",
        "",
        "## Known faults",
        "",
        f"- Few pictures: a pass has {min(steps, default=0)} to {max(steps, default=0)} steps. Fixed costs of a pass "
        "weigh more than in a real epoch.",
        "- Time of starting processes and of importing torch is in no column.",
        "- Workers on one CPU share its caches and memory, and the all-reduce needs the same cores as the training.",
        "- A machine is slowed by what else runs there, a virtual one by others on its host: rows with a large "
        "`spread` show it.",
    ]
    drift = drift_of(records)
    if drift is not None:
        lines.append(
            f"- Deviations of passes from the mean of their row correlate by {drift:.2f} between consecutive passes: "
            "a value above 0 means that the machine drifts within a turn."
        )
    if table.refused:
        lines += ["", "Not measured, because this device refused:", *(f"- {text}" for text in table.refused)]
    return "\n".join(lines) + "\n"


def drift_of(records: Mapping[str, Record]) -> float | None:
    """Correlation between the deviations (of log time, from the mean of the row) of consecutive passes.

    About 0 on a steady machine, since repeats of one row are not consecutive; None if too few passes were repeated.
    """
    logs = {label: math.log(float(record["pass_s"])) for label, record in records.items() if "pass_s" in record}
    rows: dict[str, list[float]] = {}
    for label, value in logs.items():
        rows.setdefault(label.rpartition(" turn ")[0], []).append(value)
    pairs = ((value, rows[label.rpartition(" turn ")[0]]) for label, value in logs.items())
    deviations = [value - statistics.mean(row) for value, row in pairs if len(row) > 1]
    if len(deviations) < _LEAST_DEVIATIONS or len(set(deviations)) == 1:
        return None
    return statistics.correlation(deviations[:-1], deviations[1:])


_LEAST_DEVIATIONS = 100


def _repeated(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(int(row["repeats"]) for row in rows)
    return ", ".join(f"{counts[n]:,} rows of {n}" for n in sorted(counts, reverse=True))


def _shapes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| data | input | classes | samples in a pass | batch of a worker | workers | rows |",
        "|---|---|---|---|---|---|---|",
    ]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        members = [row for row in rows if row["dataset"] == dataset]

        def all_of(column: str, members: Sequence[Mapping[str, Any]] = members) -> str:
            return ", ".join(str(value) for value in sorted({row[column] for row in members}))

        lines.append(
            f"| {dataset} | {all_of('input')} | {all_of('model_config')} | {all_of('samples')} | "
            f"{all_of('batch_size')} | {all_of('gpus')} | {len(members)} |"
        )
    return lines
