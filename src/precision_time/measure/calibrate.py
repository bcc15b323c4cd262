"""`calibrate`: measures this machine in minutes and writes the device file that `predict --device FILE` prices with."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import MeasureError
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.job.file import compact_json, write_whole
from precision_time.job.job import Job
from precision_time.measure import machine
from precision_time.measure.launch import launch
from precision_time.measure.point import COLUMNS
from precision_time.timing.calibrated import SURFACES

DEFAULT_BUDGET_S = 180.0
NOISY = 0.10
"""Spread of equal measurements from which a machine is called noisy: a tenth is what a calibration should resolve."""
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What is calibrated: the device type, the ranks that will share this machine, and the threads of each."""

    device_type: str
    ranks: int
    threads: int

    @classmethod
    def here(cls, device_type: str | None = None, ranks: int | None = None, threads: int | None = None) -> Machine:
        """This machine: its GPUs, one rank each, or else its CPU shared by two ranks; `MeasureError` if it has not."""
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
        each = threads or cores // count
        if each * count > cores:
            raise MeasureError(
                f"threads is {each} for each of {count} ranks, but this machine has {cores} cores; "
                f"use at most {cores // count}"
            )
        return cls(kind, count, each)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The device file's content, and the benchmarks that were left out, each with why."""

    content: dict[str, Any]
    left_out: tuple[str, ...]
    continued: int = 0
    """Points that an earlier calibration had left in the journal."""


def calibrate(
    here: Machine,
    budget_s: float = DEFAULT_BUDGET_S,
    report: Report = lambda done, total: None,
    jobs: Sequence[Job] = (),
    journal: Path | None = None,
) -> Calibrated:
    """Measure this machine in about `budget_s` seconds, plus a minute for what its ranks do to each other.

    Of `jobs` that shall be predicted here, every operator that takes a share worth it is measured in its own shape too.
    With a `journal` points are kept as they come, and those that are there already are not measured again; it is
    deleted once no point lacks for want of time.
    """
    found = measure_kernels(here, budget_s, report, jobs, journal=journal)
    together = None
    if here.ranks > 1:
        task = {"task": "together", "device": here.device_type, "dtypes": _dtypes(here.device_type)}
        together = launch(task, here.ranks, here.threads, timeout_s=600)
    if journal is not None and not found["unfinished"]:
        journal.unlink(missing_ok=True)
    return Calibrated(document(here, found, together), tuple(found["left_out"]), found["continued"])


def measure_kernels(
    here: Machine,
    budget_s: float,
    report: Report,
    jobs: Sequence[Job],
    families: bool = True,
    journal: Path | None = None,
) -> dict[str, Any]:
    """Rows of the suite (without `families` those of the jobs alone), host costs and noise, as `suite` gives them."""
    words = [words_of(job.replace(gpus=1)) for job in jobs]
    found: dict[str, Any] = launch(
        {
            "task": "kernels",
            "device": here.device_type,
            "dtypes": _dtypes(here.device_type),
            "budget_s": budget_s,
            "jobs": [each for i, each in enumerate(words) if each not in words[:i]],
            "families": families,
            "journal": str(journal.absolute()) if journal else None,
        },
        threads=here.threads,
        timeout_s=budget_s * 2 + 300,
        report=report,
    )
    return found


def words_of(job: Job) -> dict[str, Any]:
    """The job for another process: what runs, without the device it is predicted for."""
    return {key: value for key, value in job.to_dict().items() if key not in ("gpu", "device", "node", "nodes")}


def catalog_of(content: Mapping[str, Any]) -> Catalog:
    """The built-in catalog with a device file's content on top, without a file."""
    return default_catalog().with_document(content, "calibration")


def write(path: str | Path, content: Mapping[str, Any]) -> None:
    """One row a line, so that two calibrations can be compared line by line."""
    write_whole(path, (compact_json(content) + "\n").encode())


JOURNAL_HOURS = 24.0
"""A calibration that was interrupted, or ran out of time, is continued for so long; later the machine is another."""


def journal_of(output: str | Path) -> Path:
    """The journal beside a device file, emptied if it is old."""
    path = Path(output).with_suffix(".points.jsonl")
    if path.exists() and time.time() - path.stat().st_mtime > JOURNAL_HOURS * 3600:
        path.unlink()
    return path


def check_output(path: str | Path) -> None:
    """Before minutes of measuring: the file must end in .json and its folder must exist."""
    target = Path(path)
    if target.suffix.lower() != ".json":
        raise MeasureError(f"output {str(path)!r} is no JSON file name; end it in .json")
    if not target.absolute().parent.is_dir():
        raise MeasureError(f"output {str(path)!r}: there is no folder {target.parent}; make it first")


def document(here: Machine, kernels: Mapping[str, Any], together: Mapping[str, Any] | None) -> dict[str, Any]:
    """The device file of what was measured: one GPU entry, one node and one fabric, named after this machine."""
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
        "crowding": {},
        "collectives": {},
    }
    bus_gb_per_s = 1.0
    if together is not None:
        ranks = str(here.ranks)
        calibration["crowding"] = {ranks: _crowding(together["crowding"])}
        calibration["collectives"] = {
            key: {ranks: [[size, float(f"{seconds:.5g}")] for size, seconds in points]}
            for key, points in together["collectives"].items()
        }
        size, seconds = together["collectives"]["all_reduce"][-1]
        bus_gb_per_s = 2.0 * (here.ranks - 1) / here.ranks * size / seconds / 1e9
    source = f"measured by precision-time calibrate on {calibration['made']}"
    facts = {**machine.facts(here.device_type, here.ranks), **_ceilings(rows)}
    return {
        "gpus": {name: {**facts, "device_type": here.device_type, "sources": source, "calibration": calibration}},
        "nodes": {node: {"gpus": [name], "default_for": [name], "gpus_per_node": here.ranks, "intra": fabric,
                         "source": source}},
        "fabrics": {fabric: {"kind": "shared-memory" if here.device_type == "cpu" else "pcie",
                             "bus_gb_per_s": float(f"{bus_gb_per_s:.4g}"), "source": source}},
    }  # fmt: skip


def _crowding(probes: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """A factor for each class, never below one: the mean logarithm of its probes, drawn towards that of all classes
    limited by arithmetic, or by memory, as if two probes of the class had said so."""
    found: dict[str, Any] = {"classes": {}}
    for kind, arithmetic in (("compute", True), ("memory", False)):
        members = {n: np.log(f) for n, f in probes.items() if (n.split()[0] in SURFACES) == arithmetic}
        common = float(np.mean(np.concatenate(list(members.values())))) if members else 0.0
        found[kind] = round(max(float(np.exp(common)), 1.0), 4)
        for name, logs in members.items():
            mean = (logs.sum() + _COMMON_PROBES * common) / (len(logs) + _COMMON_PROBES)
            found["classes"][name] = round(max(float(np.exp(mean)), 1.0), 4)
    return found


_COMMON_PROBES = 2


def device_name(here: Machine) -> str:
    """What `--gpu` calls it."""
    return "this-cpu" if here.device_type == "cpu" else "this-gpu"


def _ceilings(rows: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Best arithmetic rates by unit, in TFLOP/s, and best traffic, in GB/s: the roofline that utilisations refer to."""
    at = {column: index for index, column in enumerate(COLUMNS)}
    rates: dict[str, float] = {}
    traffic = 0.0
    for row in rows:
        seconds = row[at["seconds"]]
        traffic = max(traffic, row[at["bytes"]] / seconds)
        if row[at["math"]] != "vector":
            rates[row[at["math"]]] = max(rates.get(row[at["math"]], 0.0), row[at["flops"]] / seconds)
    if not rates:
        raise MeasureError("no matrix product could be timed, so there is no peak to refer to; raise the budget")
    tflops = {f"{math}_tflops": float(f"{rate / 1e12:.4g}") for math, rate in rates.items()}
    return {**tflops, "mem_bw_gbs": float(f"{traffic / 1e9:.4g}")}


def _dtypes(device_type: str) -> list[str]:
    if device_type == "cpu":
        return ["float32", "bfloat16"]
    import torch

    half = ["float16", "bfloat16"] if torch.cuda.is_bf16_supported() else ["float16"]
    return ["float32", *half]
