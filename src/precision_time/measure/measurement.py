"""`measure`: the large suite on this machine into a folder, resumable, with a table for each kind and a data card."""

from __future__ import annotations

import csv
import datetime
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from precision_time.job.file import write_whole
from precision_time.job.job import Job
from precision_time.measure.calibrate import Machine, words_of
from precision_time.measure.hosts import graph_launch_us, host_costs
from precision_time.measure.journal import Journal, Record, made_folder, read
from precision_time.measure.launch import launch
from precision_time.measure.machine import header
from precision_time.measure.optimizers import update_tasks
from precision_time.measure.scaled import SCALINGS
from precision_time.measure.session import noise_of, points_of, work_off
from precision_time.measure.suite import Task, bench_task, family_tasks, interleaved, job_tasks, limits_of, modes
from precision_time.measure.whole_steps import COLUMNS as STEP_COLUMNS
from precision_time.measure.whole_steps import gpu_name, step_tasks
from precision_time.measure.zoo_operators import zoo_benches

KINDS = ("operators", "updates", "steps", "host", "ranks")
"""Operators alone, whole optimizer updates, whole training steps, host costs, what ranks do to each other."""
JOURNAL = "journal.jsonl"
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a folder of measurements holds after a run: counts by kind, the files, what was left out and why."""

    folder: Path
    counts: Mapping[str, int]
    noise: float
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    continued: int

    @property
    def unfinished(self) -> int:
        return sum(text.endswith("no time left") for text in self.left_out)

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder), "counts": dict(self.counts), "noise": self.noise, "files": list(self.files),
            "continued": self.continued, "unfinished": self.unfinished, "left_out": list(self.left_out),
        }  # fmt: skip

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items()) or "nothing"
        refused = [text for text in self.left_out if not text.endswith("no time left")]
        lines = [f"{self.folder}: {counts}; {self.noise:.1%} between equal measurements"]
        if self.continued:
            lines.append(f"continued: {self.continued:,} tasks were there already")
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
    report: Report = lambda done, total: None,
) -> Measured:
    """Measure for about `budget_s` seconds, going on where the folder's journal ends, and write the folder's tables.

    Raises `MeasureError` where the folder cannot be used or was begun on another machine.
    """
    target = made_folder(folder)
    task = {
        "task": "measure", "device": here.device_type, "budget_s": budget_s, "kinds": list(kinds),
        "jobs": [words_of(job.replace(gpus=1)) for job in jobs], "journal": str((target / JOURNAL).absolute()),
    }  # fmt: skip
    found = launch(task, threads=here.threads, timeout_s=budget_s * 2 + 600, report=report)
    if "ranks" in kinds and here.ranks > 1 and not any("together" in r for r in read(target / JOURNAL)[1].values()):
        dtypes = [str(dtype).removeprefix("torch.") for dtype in _dtypes(here.device_type) if dtype != torch.float64]
        together = {"task": "together", "device": here.device_type, "dtypes": dtypes}
        record = {"together": launch(together, here.ranks, here.threads, timeout_s=600), "ranks": here.ranks}
        journal = Journal(target / JOURNAL)
        journal.add(f"{here.ranks} ranks together", record)
    head, records, _ = read(target / JOURNAL)
    return Measured(
        target, _counts(records), noise_of(records), tuple(write_tables(target, head, records)),
        tuple(found["left_out"]), found["continued"],
    )  # fmt: skip


def measure_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """The suite as `worker` runs it, in one process."""
    begin = time.monotonic()
    journal = Journal(task["journal"], {**header(device), "gpu": gpu_name(device)})
    before = len(journal)
    jobs = [Job.from_dict(words) for words in task["jobs"]]
    plan = plan_of(device, task["kinds"], jobs)
    left = task["budget_s"] - (time.monotonic() - begin)
    left_out = work_off(plan, journal, device, left, report)
    return {"left_out": left_out, "continued": before}


def plan_of(device: torch.device, kinds: Sequence[str], jobs: Sequence[Job] = ()) -> list[Task]:
    """Everything the suite measures here: given jobs first, then all kinds spread evenly over the whole."""
    first = [Task("host", lambda _: {"host": {**host_costs(device), **graph_launch_us(device)}})]
    lists: list[list[Task]] = []
    if "operators" in kinds:
        lists.append(family_tasks(device, _dtypes(device.type), fp8=True))
        for dtype, tf32 in modes(device, _dtypes(device.type)):
            benches = zoo_benches(dtype, tf32, limits_of(device, dtype, tf32), device)
            lists.append([bench_task(bench, device) for bench in benches])
    if "updates" in kinds:
        lists.append(update_tasks(device))
    if "steps" in kinds:
        lists.append(step_tasks(device))
    own = job_tasks(device, jobs) if "operators" in kinds else []
    found: dict[str, Task] = {}
    for task in (*(first if "host" in kinds else []), *own, *interleaved([each for each in lists if each])):
        found.setdefault(task.label, task)
    return list(found.values())


def _dtypes(device_type: str) -> list[torch.dtype]:
    if device_type == "cpu":
        return [torch.float32, torch.bfloat16, torch.float64]
    half = [torch.float16, torch.bfloat16] if torch.cuda.is_bf16_supported() else [torch.float16]
    return [torch.float32, *half, torch.float64]


def _counts(records: Mapping[str, Record]) -> dict[str, int]:
    counts = Counter(
        kind
        for record in records.values()
        for key, kind in (("points", "operators"), ("update", "updates"), ("step", "steps"), ("host", "host"),
                          ("together", "ranks"))
        if key in record
    )  # fmt: skip
    counts["operators"] = len(points_of(records))
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


# --- the folder's tables --------------------------------------------------------------------------------------------


def write_tables(folder: Path, head: Record, records: Mapping[str, Record]) -> list[str]:
    """operators.parquet (without pyarrow: .csv), updates.csv, steps.csv, conditions.csv, other.json and README.md."""
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
        ("conditions.csv", probes, None),
    ):
        if rows:
            write_whole(folder / name, _csv(rows, columns).encode())
            written.append(name)
    other = {key: r[key] for r in records.values() for key in ("host", "together") if key in r}
    if other:
        write_whole(folder / "other.json", (json.dumps(other, indent=1) + "\n").encode())
        written.append("other.json")
    write_whole(folder / "README.md", data_card(head, records, written).encode())
    return [*written, "README.md"]


def operator_table(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """One flat row for each measured operator; tensors as text, `float32[64,3,224,224];float32[64,3,7,7]`."""
    rows = []
    for point in points_of(records):
        work, said = point.work, point.to_json()
        rows.append(
            {
                "operator": point.operator, "family": work.family, "variant": work.variant, "math": work.math,
                "dtype": work.dtype, "inputs": _tensors(said["inputs"]), "outputs": _tensors(said["outputs"]),
                "attrs": json.dumps(said["attrs"], separators=(",", ":")), "tf32": said["tf32"], "nhwc": said["nhwc"],
                "flops": work.flops, "bytes": work.bytes, "seconds": said["seconds"], "spread": said["spread"],
                "samples": said["samples"], "slowest": said["slowest"], "outlier": said["outlier"],
            }
        )  # fmt: skip
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
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def data_card(head: Record, records: Mapping[str, Record], written: Sequence[str]) -> str:
    """What was measured, on what, with what, when, and how to read the files."""
    times = sorted(r["at"] for r in records.values() if "at" in r)
    days = sorted({at[:10] for at in times}) or [datetime.date.today().isoformat()]
    refused = Counter(r["refused"] for r in records.values() if "refused" in r)
    outliers = sum(p.to_json()["outlier"] for p in points_of(records))
    lines = [
        f"# Measurements on {head.get('gpu', 'this machine')}", "",
        f"- machine: {head.get('machine')}, {head.get('threads')} host thread(s)",
        f"- measured on {' to '.join(dict.fromkeys((days[0], days[-1])))} with torch {head.get('torch')}",
        "- command: `precision-time measure` (resumable; `journal.jsonl` has every record as it came)",
        f"- {', '.join(f'{count:,} {kind}' for kind, count in _counts(records).items())}; "
        f"equal measurements differ by {noise_of(records):.1%}; {outliers} points marked as outliers, none deleted",
        "",
        "| file | one row is |", "|---|---|",
        *(f"| {name} | {_FILES[name]} |" for name in written if name in _FILES),
        "",
        "Seconds are medians after warm-up; `spread` is 1.4826 times the median deviation over the median, `slowest` "
        "the longest sample, `outlier` whether that is twice the median. On a GPU calls are queued behind a waiting "
        "kernel and timed with CUDA events. Operands are random and come from memory, not from the cache. `tf32` says "
        "whether TF32 was allowed, `nhwc` whether images lay channels last. bytes and flops are this version's count.",
    ]  # fmt: skip
    lines += [line for note in _notes(records) for line in ("", note)]
    if refused:
        lines += ["", "Refused by the device:", *(f"- {count} x {why}" for why, count in refused.most_common(12))]
    return "\n".join(lines) + "\n"


def _notes(records: Mapping[str, Record]) -> list[str]:
    """What a reader would otherwise look for in vain."""
    families = [records.get(f"fp8 {scaling}", {}) for scaling in SCALINGS]
    reasons = dict.fromkeys(record["refused"] for record in families if "refused" in record)
    notes = [f"Left out: {why}." for why in reasons]
    if any(str(r.get("update", "")).startswith("lamb ") for r in records.values()):
        notes.append(
            "torch has no LAMB: its updates are this package's own, tensor by tensor (single) and of torch's "
            "multi-tensor operators (foreach). A fused one, as apex has it, was not measured."
        )
    return notes


_FILES = {
    "operators.parquet": "an operator in its shapes and dtypes, with its time",
    "operators.csv": "an operator in its shapes and dtypes, with its time",
    "updates.csv": "a whole update (optimizer, clipping, unscaling) of a model; host_s: until the host is free",
    "steps.csv": "a training step, in the columns of the measurement table that `evaluate` reads",
    "conditions.csv": "a fixed product's time with clock, power, temperature and load at that moment",
    "other.json": "host costs per operator; collectives and crowding among ranks",
}
