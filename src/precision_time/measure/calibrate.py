"""`calibrate`: measures this machine in minutes and writes the device file that `predict --device FILE` reads."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import MeasureError
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.job.code import check_code, is_code
from precision_time.job.job import Job
from precision_time.journal import held
from precision_time.measure import machine
from precision_time.measure.launch import Report, launch, no_report
from precision_time.measure.point import COLUMNS
from precision_time.report.write import check_file, compact_json, write_whole
from precision_time.timing.calibrated import SURFACES

DEFAULT_BUDGET_S = 180.0
LEAST_RANKS_BUDGET_S = 15.0
"""With several ranks: below it, starting the processes leaves no time to measure."""
RANKS_S, RANKS_SHARE = 60.0, 0.5
"""The part of a budget for several ranks: a minute, at most half."""
PATIENCE_S = 120.0
"""Seconds after the end of a budget at which measuring processes are killed: something in them hangs."""
NOISY = 0.10
"""Relative spread of equal measurements from which a machine is called noisy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured: the device type, the number of ranks that share this machine, and the threads of each."""

    device_type: str
    ranks: int
    threads: int

    @classmethod
    def here(cls, device_type: str | None = None, ranks: int | None = None, threads: int | None = None) -> Machine:
        """This machine: one rank for each of its GPUs, or else its CPU shared by two ranks.

        Raises `MeasureError` for a device, ranks or threads that this machine does not have.
        """
        import torch

        if device_type not in (None, "cpu", "cuda"):
            raise MeasureError(f"device type {device_type!r} cannot be measured; use cpu or cuda")
        cuda = torch.cuda.is_available()
        if device_type == "cuda" and not cuda:
            raise MeasureError("this machine has no CUDA device that torch can use; measure the CPU with --on cpu")
        kind = device_type or ("cuda" if cuda else "cpu")
        cores = machine.cores()
        if kind == "cuda":
            most = torch.cuda.device_count()
            if ranks is not None and ranks > most:
                raise MeasureError(f"ranks is {ranks}, but this machine has {most} CUDA devices; use at most {most}")
            return cls(kind, ranks or most, threads or max(cores // most, 1))
        count = ranks or min(2, cores)
        if count > cores:
            raise MeasureError(f"ranks is {count}, but this machine has {cores} cores; use at most {cores}")
        threads_each = threads or cores // count
        if threads_each * count > cores:
            raise MeasureError(
                f"threads is {threads_each} for each of {count} ranks, but this machine has {cores} cores; "
                f"use at most {cores // count}"
            )
        return cls(kind, count, threads_each)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The content of a device file, and "label: reason" of each benchmark that was left out."""

    content: dict[str, Any]
    left_out: tuple[str, ...]
    continued: int = 0
    """Points that an earlier, interrupted calibration had already measured."""


def calibrate(
    here: Machine,
    budget_s: float = DEFAULT_BUDGET_S,
    report: Report = no_report,
    jobs: Sequence[Job] = (),
    journal: Path | None = None,
) -> Calibrated:
    """Measure kernels, and with several ranks collectives and contention too, for `budget_s` seconds in all.

    The larger operators of `jobs` are measured in their own shapes before all else. With a `journal` each point is
    written to that file as it comes, and points already in it are not measured again; the file is deleted once no point
    is left out for lack of time. Raises `MeasureError` when no matrix product could be timed, and `DataError` while
    another process uses the journal.
    """
    with contextlib.nullcontext() if journal is None else held(journal):
        return _calibrate(here, budget_s, report, jobs, journal)


def _calibrate(here: Machine, budget_s: float, report: Report, jobs: Sequence[Job], journal: Path | None) -> Calibrated:
    end = time.monotonic() + budget_s
    ranks_s = ranks_share_s(budget_s) if here.ranks > 1 else 0.0
    kernels = measure_kernels(here, budget_s - ranks_s, report, jobs, journal=journal)
    check_products(kernels, budget_s)
    interference = measure_interference(here, dtypes_of(here.device_type), end) if here.ranks > 1 else None
    if journal is not None and not kernels["unfinished"]:
        journal.unlink(missing_ok=True)
    return Calibrated(document(here, kernels, interference), tuple(kernels["left_out"]), kernels["continued"])


def measure_kernels(
    here: Machine,
    budget_s: float,
    report: Report,
    jobs: Sequence[Job],
    families: bool = True,
    journal: Path | None = None,
) -> dict[str, Any]:
    """The result of `session.kernels_task` in a fresh process; without `families`, only operators of the jobs."""
    fields = [portable_fields(job.replace(gpus=1)) for job in jobs]
    result: dict[str, Any] = launch(
        {
            "task": "kernels",
            "device": here.device_type,
            "dtypes": dtypes_of(here.device_type),
            "end": time.monotonic() + budget_s,
            "jobs": [each for i, each in enumerate(fields) if each not in fields[:i]],
            "families": families,
            "journal": str(journal.absolute()) if journal else None,
        },
        threads=here.threads,
        timeout_s=budget_s + PATIENCE_S,
        report=report,
    )
    return result


def ranks_share_s(budget_s: float) -> float:
    """Seconds of a budget for collectives and contention, with the start of the ranks: at most a minute."""
    return min(RANKS_S, RANKS_SHARE * budget_s)


def measure_interference(here: Machine, dtypes: Sequence[str], end: float) -> dict[str, Any]:
    """The result of `rank_interference.interference_task` on all ranks of this machine.

    At time `end` of the machine's monotonic clock it stops; the least it measures takes about two seconds.
    """
    task = {"task": "interference", "device": here.device_type, "dtypes": list(dtypes), "end": end}
    timeout_s = max(end - time.monotonic(), 0.0) + PATIENCE_S
    result: dict[str, Any] = launch(task, here.ranks, here.threads, timeout_s=timeout_s)
    return result


def check_products(kernels: Mapping[str, Any], budget_s: float | None = None) -> None:
    """Raise `MeasureError` if the rows hold no matrix product: device peaks are the best rates of products."""
    if any(row[COLUMNS.index("math")] != "vector" for row in kernels["rows"]):
        return
    late = sum(text.endswith("no time left") for text in kernels["left_out"])
    refused = [text for text in kernels["left_out"] if not text.endswith("no time left")]
    reasons = [f"{late} benchmarks found no time"] if late else []
    reasons += [f"{len(refused)} were refused by the device, the first: {refused[0]}"] if refused else []
    budget = "" if budget_s is None else f" (now {budget_s:g} s)"
    raise MeasureError(
        f"no matrix product could be timed, so peaks are unknown: {'; '.join(reasons) or 'none was planned'}. "
        f"Stop other programs on this machine and raise --budget{budget}"
    )


def portable_fields(job: Job) -> dict[str, Any]:
    """The job's fields without those of the device it is predicted for: what another process needs to run it.

    Raises `JobError` where the model is code that may not run: the other process runs what it gets.
    """
    if is_code(job.model):
        check_code(job.code, job.model)
    return {key: value for key, value in job.to_dict().items() if key not in ("gpu", "device", "node", "nodes")}


def catalog_of(content: Mapping[str, Any]) -> Catalog:
    """The built-in catalog plus the content of a device file."""
    return default_catalog().with_document(content, "calibration")


def write(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write one row per line, so that two calibrations can be compared with a line-based diff."""
    write_whole(path, (compact_json(content) + "\n").encode())


POINTS = ".points.jsonl"
"""What the journal of a device file is called instead of .json."""
JOURNAL_HOURS = 24.0
"""An interrupted or unfinished calibration is continued for this long; the machine may have changed afterwards."""


def journal_of(output: str | Path) -> Path:
    """The journal beside a device file; an old one is deleted."""
    path = Path(output).with_suffix(POINTS)
    if path.exists() and time.time() - path.stat().st_mtime > JOURNAL_HOURS * 3600:
        path.unlink()
    return path


def check_output(path: str | Path) -> None:
    """Before measuring for minutes: raise an error unless the file ends in .json and can be written."""
    if Path(path).suffix.lower() != ".json":
        raise MeasureError(f"output {str(path)!r} is no JSON file name; end it in .json")
    check_file("output", path)
    check_file("output", Path(path).with_suffix(POINTS))


def document(here: Machine, kernels: Mapping[str, Any], interference: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of a device file: one GPU entry, one node and one fabric, named after this machine."""
    check_products(kernels)
    rows: Sequence[Sequence[Any]] = kernels["rows"]
    name, node, fabric = device_name(here), "this-machine", "this-machine-link"
    calibration: dict[str, Any] = {
        "made": datetime.date.today().isoformat(),
        "command": "precision-time calibrate",
        "versions": machine.versions(),
        "machine": machine.description(here.device_type),
        "threads": here.threads,
        "noise": round(kernels["noise"], 4),
        "kernels": {"columns": list(COLUMNS), "rows": rows},
        "host": {key: round(value, 4) for key, value in kernels["host"].items()},
        "contention": {},
        "collectives": {},
    }
    bus_gb_per_s = 1.0
    if interference is not None:
        ranks = str(here.ranks)
        calibration["contention"] = {ranks: contention_entry(interference["contention"])}
        calibration["collectives"] = {
            key: {ranks: [[size, float(f"{seconds:.5g}")] for size, seconds in points]}
            for key, points in interference["collectives"].items()
        }
        size, seconds = interference["collectives"]["all_reduce"][-1]
        bus_gb_per_s = 2.0 * (here.ranks - 1) / here.ranks * size / seconds / 1e9
    source = f"measured by precision-time calibrate on {calibration['made']}"
    facts = {**machine.facts(here.device_type, here.ranks), **_peaks(rows)}
    gpu = {**facts, "device_type": here.device_type, "sources": source, "calibration": calibration}
    fabric_kind = "shared-memory" if here.device_type == "cpu" else "pcie"
    return {
        "gpus": {name: gpu},
        "nodes": {
            node: {
                "gpus": [name],
                "default_for": [name],
                "gpus_per_node": here.ranks,
                "intra": fabric,
                "source": source,
            }
        },
        "fabrics": {fabric: {"kind": fabric_kind, "bus_gb_per_s": float(f"{bus_gb_per_s:.4g}"), "source": source}},
    }


def contention_entry(probes: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Contention factors of a device file from those of single probes; none is below one.

    `compute` and `memory` are geometric means over all probes limited by arithmetic or by memory. The factor of a class
    is the geometric mean of its probes, shrunk towards that common one as if `_COMMON_PROBES` probes had measured it.
    """
    classes: dict[str, float] = {}
    entry: dict[str, Any] = {"classes": classes}
    for kind, arithmetic in (("compute", True), ("memory", False)):
        members = {n: np.log(f) for n, f in probes.items() if (n.split()[0] in SURFACES) == arithmetic}
        common = float(np.mean(np.concatenate(list(members.values())))) if members else 0.0
        entry[kind] = round(max(float(np.exp(common)), 1.0), 4)
        for name, logs in members.items():
            mean = (logs.sum() + _COMMON_PROBES * common) / (len(logs) + _COMMON_PROBES)
            classes[name] = round(max(float(np.exp(mean)), 1.0), 4)
    return entry


_COMMON_PROBES = 2


def device_name(here: Machine) -> str:
    """The name of this machine's device for `--gpu`."""
    return "this-cpu" if here.device_type == "cpu" else "this-gpu"


def _peaks(rows: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Best arithmetic rate by kind of arithmetic (TFLOP/s) and best traffic (GB/s): utilisations refer to these."""
    at = {column: index for index, column in enumerate(COLUMNS)}
    rates: dict[str, float] = {}
    traffic = 0.0
    for row in rows:
        seconds = row[at["seconds"]]
        traffic = max(traffic, row[at["bytes"]] / seconds)
        if row[at["math"]] != "vector":
            rates[row[at["math"]]] = max(rates.get(row[at["math"]], 0.0), row[at["flops"]] / seconds)
    tflops = {f"{math}_tflops": float(f"{rate / 1e12:.4g}") for math, rate in rates.items()}
    return {**tflops, "mem_bw_gbs": float(f"{traffic / 1e9:.4g}")}


def dtypes_of(device_type: str, double: bool = False) -> list[str]:
    """Names of the dtypes that are measured on a device; float64 on request."""
    if device_type == "cpu":
        half = ["bfloat16"]
    else:
        import torch

        half = ["float16", "bfloat16"] if torch.cuda.is_bf16_supported() else ["float16"]
    return ["float32", *half, *(["float64"] if double else [])]
