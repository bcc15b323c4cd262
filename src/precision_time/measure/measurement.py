"""`measure`: the large suite on this machine, resumable, into a folder with a table for each kind and a data card."""

from __future__ import annotations

import datetime
import io
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from precision_time.job.code import GIVEN
from precision_time.job.job import Job
from precision_time.journal import Journal, Record, held, read
from precision_time.measure.calibrate import (
    PATIENCE_S,
    Machine,
    dtypes_of,
    measure_interference,
    portable_fields,
    ranks_share_s,
)
from precision_time.measure.hosts import graph_launch_us, host_costs
from precision_time.measure.launch import Report, launch, no_report
from precision_time.measure.machine import header
from precision_time.measure.optimizers import update_tasks
from precision_time.measure.scaled import SCALINGS
from precision_time.measure.session import NO_TIME, noise_of, points_of, run_plan
from precision_time.measure.suite import Task, bench_task, family_tasks, interleaved, job_tasks, limits_of, modes
from precision_time.measure.whole_steps import COLUMNS as STEP_COLUMNS
from precision_time.measure.whole_steps import gpu_name, step_tasks
from precision_time.measure.zoo_operators import zoo_benches
from precision_time.reading import to_json
from precision_time.report.table import csv_rows
from precision_time.report.write import make_own_folder, write_whole

KINDS = ("operators", "updates", "steps", "host", "ranks")
"""Single operators, optimizer updates, training steps, host costs, effects of several busy ranks."""
RANKS = {"interference", "together"}
"""Fields of a record of several ranks; journals written before named it `together`."""
JOURNAL = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Measured:
    """Content of a folder of measurements: counts by kind, files, and "label: reason" of each task left out."""

    folder: Path
    counts: Mapping[str, int]
    noise: float
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    continued: int

    @property
    def unfinished(self) -> int:
        return sum(text.endswith(NO_TIME) for text in self.left_out)

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "counts": dict(self.counts),
            "noise": self.noise,
            "files": list(self.files),
            "continued": self.continued,
            "unfinished": self.unfinished,
            "left_out": list(self.left_out),
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items()) or "nothing"
        refused = [text for text in self.left_out if not text.endswith(NO_TIME)]
        lines = [f"{self.folder}: {counts}; {self.noise:.1%} between equal measurements"]
        if self.continued:
            lines.append(f"continued: {self.continued:,} tasks were measured before")
        if self.unfinished:
            lines.append(f"{self.unfinished:,} tasks found no time; the same command again continues with them")
        if refused:
            lines.append(f"{len(refused):,} were refused by the device, the first: {refused[0]}")
        lines.append(f"written: {', '.join(self.files)}")
        return "\n".join(lines)


def measure(
    here: Machine,
    folder: str | Path,
    budget_s: float,
    jobs: Sequence[Job] = (),
    kinds: Sequence[str] = KINDS,
    report: Report = no_report,
) -> Measured:
    """Measure for `budget_s` seconds in all, continuing the folder's journal, and write the folder's tables.

    Raises `DataError` if the folder cannot be used, was begun on another machine, or is in use by another process.
    """
    end = time.monotonic() + budget_s
    target = make_own_folder(folder, [JOURNAL])
    with held(target / JOURNAL):
        return _measure(here, target, end, jobs, kinds, report)


def _measure(
    here: Machine, target: Path, end: float, jobs: Sequence[Job], kinds: Sequence[str], report: Report
) -> Measured:
    path, budget_s = target / JOURNAL, end - time.monotonic()
    ranks = "ranks" in kinds and here.ranks > 1 and not _has_ranks(path)
    task = {
        "task": "measure",
        "device": here.device_type,
        "end": end - (ranks_share_s(budget_s) if ranks else 0.0),
        "kinds": list(kinds),
        "jobs": [portable_fields(job.replace(gpus=1)) for job in jobs],
        "journal": str(path.absolute()),
    }
    result = launch(task, threads=here.threads, timeout_s=budget_s + PATIENCE_S, report=report)
    if ranks:
        interference = measure_interference(here, dtypes_of(here.device_type), end)
        Journal(path).add(f"{here.ranks} ranks", {"interference": interference, "ranks": here.ranks})
    head, records, _ = read(path)
    return Measured(
        target,
        _counts(records),
        noise_of(records),
        tuple(write_tables(target, head, records)),
        tuple(result["left_out"]),
        result["continued"],
    )


def measure_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """Run the suite in one process, as `worker` calls it."""
    journal = Journal(task["journal"], {**header(device), "gpu": gpu_name(device)})
    earlier = len(journal)
    jobs = [Job.from_fields(fields, GIVEN) for fields in task["jobs"]]
    plan = plan_of(device, task["kinds"], jobs, journal)
    left_out = run_plan(plan, journal, device, task["end"] - time.monotonic(), report)
    return {"left_out": left_out, "continued": earlier}


def _has_ranks(path: Path) -> bool:
    """Whether the journal holds the effects of several ranks."""
    if not (path.exists() and path.stat().st_size):
        return False
    return any(RANKS & record.keys() for record in read(path)[1].values())


def plan_of(
    device: torch.device, kinds: Sequence[str], jobs: Sequence[Job] = (), journal: Journal | None = None
) -> list[Task]:
    """All tasks of the suite on this device: operators of the jobs first, then all kinds interleaved.

    The `journal` keeps the rates that the sizes follow.
    """
    first = [Task("host", lambda _: {"host": {**host_costs(device), **graph_launch_us(device)}})]
    lists: list[list[Task]] = []
    if "operators" in kinds:
        dtypes = [getattr(torch, name) for name in dtypes_of(device.type, double=True)]
        lists.append(family_tasks(device, dtypes, fp8=True, journal=journal))
        for dtype, tf32 in modes(device, dtypes):
            benches = zoo_benches(dtype, tf32, limits_of(device, dtype, tf32, journal), device)
            lists.append([bench_task(bench, device) for bench in benches])
    if "updates" in kinds:
        lists.append(update_tasks(device))
    if "steps" in kinds:
        lists.append(step_tasks(device))
    of_jobs = job_tasks(device, jobs) if "operators" in kinds else []
    plan: dict[str, Task] = {}
    for task in (*(first if "host" in kinds else []), *of_jobs, *interleaved([each for each in lists if each])):
        plan.setdefault(task.label, task)
    return list(plan.values())


def _counts(records: Mapping[str, Record]) -> dict[str, int]:
    counts = Counter(
        kind
        for record in records.values()
        for key, kind in (
            ("points", "operators"),
            ("update", "updates"),
            ("step", "steps"),
            ("host", "host"),
            *((field, "ranks") for field in RANKS),
        )
        if key in record
    )
    counts["operators"] = len(points_of(records))
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


# --- the folder's tables --------------------------------------------------------------------------------------------


def write_tables(
    folder: Path, head: Record, records: Mapping[str, Record], command: str = "precision-time measure"
) -> list[str]:
    """operators.parquet (without pyarrow: .csv), updates.csv, steps.csv, usage.csv, captured.csv, profiled.csv,
    kernels.csv, conditions.csv, other.json and README.md, which names the `command`."""
    written = []
    operators = operator_table(records)
    if operators:
        written.append(_write_operators(folder, operators))
    updates = [{"update": r["update"], **r} for r in records.values() if "update" in r]
    steps = [r["step"] for r in records.values() if "step" in r]
    probes = [r for r in records.values() if "probe_s" in r]
    for name, rows, columns in (
        ("updates.csv", updates, None),
        ("steps.csv", steps, STEP_COLUMNS),
        ("usage.csv", [r["usage"] for r in records.values() if "usage" in r], None),
        *((f"{name}.csv", [row for r in records.values() for row in r.get(name, ())], None) for name in _LISTS),
        ("conditions.csv", probes, None),
    ):
        if rows:
            write_whole(folder / name, _csv(rows, columns).encode())
            written.append(name)
    other = {key: r[key] for r in records.values() for key in ("host", *RANKS) if key in r}
    if other:
        write_whole(folder / "other.json", (to_json(other, indent=1) + "\n").encode())
        written.append("other.json")
    write_whole(folder / "README.md", data_card(head, records, written, command).encode())
    return [*written, "README.md"]


def operator_table(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """One row for each measured operator; tensors are text such as `float32[64,3,224,224];float32[64,3,7,7]`."""
    rows = []
    for point in points_of(records):
        work, fields = point.work, point.to_json()
        rows.append(
            {
                "operator": point.operator,
                "family": work.family,
                "variant": work.variant,
                "math": work.math,
                "dtype": work.dtype,
                "inputs": _tensors(fields["inputs"]),
                "outputs": _tensors(fields["outputs"]),
                "attrs": to_json(fields["attrs"], separators=(",", ":")),
                "tf32": fields["tf32"],
                "nhwc": fields["nhwc"],
                "flops": work.flops,
                "bytes": work.bytes,
                "seconds": fields["seconds"],
                "spread": fields["spread"],
                "samples": fields["samples"],
                "slowest": fields["slowest"],
                "outlier": fields["outlier"],
            }
        )
    return rows


def _tensors(specs: Sequence[Sequence[Any]]) -> str:
    return ";".join(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in specs)


def _write_operators(folder: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        write_whole(folder / "operators.csv", _csv(rows, None).encode())
        return "operators.csv"
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), buffer, compression="zstd")
    write_whole(folder / "operators.parquet", buffer.getvalue())
    return "operators.parquet"


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None) -> str:
    names = columns or list(dict.fromkeys(key for row in rows for key in row))
    return csv_rows(names, rows)


def data_card(
    head: Record, records: Mapping[str, Record], written: Sequence[str], command: str = "precision-time measure"
) -> str:
    """The folder's README: device, versions, dates, counts, files, refusals, and how to read the tables."""
    times = sorted(r["at"] for r in records.values() if "at" in r)
    days = sorted({at[:10] for at in times}) or [datetime.date.today().isoformat()]
    refused = Counter(r["refused"] for r in records.values() if "refused" in r)
    outliers = sum(p.to_json()["outlier"] for p in points_of(records))
    lines = [
        f"# Measurements on {head.get('gpu', 'this machine')}",
        "",
        f"- machine: {head.get('machine')}, {head.get('threads')} host thread(s)",
        f"- measured on {' to '.join(dict.fromkeys((days[0], days[-1])))} with torch {head.get('torch')}",
        f"- command: `{command}` (resumable; `journal.jsonl` has every record as it came)",
        f"- {', '.join(f'{count:,} {kind}' for kind, count in _counts(records).items())}; "
        f"equal measurements differ by {noise_of(records):.1%}; {outliers} points marked as outliers, none deleted",
        "",
        "| file | one row is |",
        "|---|---|",
        *(f"| {name} | {_FILES[name]} |" for name in written if name in _FILES),
        "",
        "Seconds are medians after warm-up; `spread` is 1.4826 times the median deviation over the median, `slowest` "
        "the longest sample, `outlier` whether that is twice the median. On a GPU calls are queued behind a waiting "
        "kernel and timed with CUDA events. Operands are random and come from memory, not from the cache. `tf32` says "
        "whether TF32 was allowed, `nhwc` whether images are stored channels last. `bytes` and `flops` are counted by "
        "this version of precision-time.",
    ]
    lines += [line for note in _notes(records) for line in ("", note)]
    if refused:
        lines += ["", "Refused by the device:", *(f"- {count} x {why}" for why, count in refused.most_common(12))]
    return "\n".join(lines) + "\n"


def _notes(records: Mapping[str, Record]) -> list[str]:
    """What was not measured, and why."""
    families = [records.get(f"fp8 {scaling}", {}) for scaling in SCALINGS]
    reasons = dict.fromkeys(record["refused"] for record in families if "refused" in record)
    notes = [f"Left out: {why}." for why in reasons]
    if any(str(r.get("update", "")).startswith("lamb ") for r in records.values()):
        notes.append(
            "torch has no LAMB: it is implemented here, tensor by tensor (single) and with torch's multi-tensor "
            "operators (foreach). A fused implementation, such as that of apex, was not measured."
        )
    return notes


_LISTS = ("captured", "profiled", "kernels")
"""Fields of records that are lists of rows of the file of that name."""
_FILES = {
    "operators.parquet": "an operator in its shapes and dtypes, with its time",
    "operators.csv": "an operator in its shapes and dtypes, with its time",
    "updates.csv": "a whole update (optimizer, clipping, unscaling) of a model; host_s: until the host is free",
    "steps.csv": "a training step, in the columns of the measurement table that `evaluate` reads",
    "usage.csv": "a training step's memory, host time, power and clock",
    "profiled.csv": "an operator of a step that ran, with the microseconds of its own kernels by torch's profiler",
    "kernels.csv": "a kernel of a step that ran, with its microseconds",
    "captured.csv": "an operator of a traced step: its calls and dtypes, and those that torch's profiler saw",
    "conditions.csv": "a fixed product's time with clock, power, temperature and load at that moment",
    "other.json": "host costs per operator; collectives and contention among ranks",
}
