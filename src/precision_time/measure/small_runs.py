"""`runs`: trains small networks on this machine and times whole passes over data, with one and several workers.

A **configuration** is a network on one shape of data, in one precision, with a number of workers, a batch size and a
part of the training set. For each measurement a model is built, takes warm-up steps, and then makes one timed pass over
that part of the data through a `DataLoader`. Each turn measures all configurations once, so that the repeats of one lie
far apart in time and a budget that ends early leaves equally many passes for every network.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from precision_time.errors import MeasureError, PrecisionTimeError, nearest
from precision_time.job.job import Job
from precision_time.job.run import Run
from precision_time.journal import Journal, Record, held, read
from precision_time.measure.calibrate import LEAST_RANKS_BUDGET_S, PATIENCE_S, Machine, calibrate, write
from precision_time.measure.conditions import conditions
from precision_time.measure.kernel_support import UnsupportedError
from precision_time.measure.launch import Report, launch, no_report
from precision_time.measure.machine import description, header
from precision_time.measure.rank_interference import decided_by_rank_0
from precision_time.measure.runs_table import DEVICE, RunsTable, write_table
from precision_time.measure.train import Trainer, settings, wait
from precision_time.report.write import make_own_folder
from precision_time.zoo.tables.small import ENTRIES

JOURNAL = "journal.jsonl"
POINTS = "device.points.jsonl"
WARMUP_STEPS = 2
TURNS = 3
LONG_PASS_S = 1.0
"""Passes longer than this are measured twice instead of three times: they average over short disturbances."""
CALIBRATION_S = 150.0
PRECISIONS = ("fp32", "amp-bf16")
_SMALLEST = "small-mlp"
NETWORKS = tuple(entry.name for entry in ENTRIES)


@dataclass(frozen=True, slots=True)
class Shape:
    """Images with the size and the classes of a known data set, but few enough for short passes.

    `batches` are batch sizes of one worker; parts of the training set are measured with the first one only.
    """

    dataset: str
    image_size: int
    classes: int
    samples: int
    batches: tuple[int, ...]


SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "cpu": (Shape("cifar-10", 32, 10, 256, (16, 64)), Shape("tiny-imagenet", 64, 200, 128, (8, 32))),
    "cuda": (Shape("cifar-10", 32, 10, 16384, (128, 512)), Shape("tiny-imagenet", 64, 200, 8192, (64, 256))),
}
"""By device type. Every part of every shape is a whole number of steps on two workers."""
PARTS = (8, 4, 2, 1)
"""Divisors of the training set."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of the table."""

    model: str
    dataset: str
    image_size: int
    classes: int
    precision: str
    workers: int
    batch_size: int
    samples: int

    @property
    def label(self) -> str:
        return f"{self.model}-{self.dataset}-{self.precision}-w{self.workers}-b{self.batch_size}-n{self.samples}"

    def job(self) -> Job:
        """The pass as a job, without its device."""
        optimizer = next(entry.optimizer for entry in ENTRIES if entry.name == self.model)
        return Job(
            self.model,
            model_config={"classes": self.classes},
            input={"image_size": self.image_size},
            precision=self.precision,
            batch_size=self.batch_size,
            gpus=self.workers,
            optimizer=optimizer,
            run=Run(samples=self.samples, dataset=self.dataset),
        )


def configurations(
    networks: Sequence[str], workers: Sequence[int], device_type: str, quick: bool = False
) -> list[Configuration]:
    """All configurations; those that differ in their network only are adjacent. `quick`: two parts, fp32 only."""
    plan: list[Configuration] = []
    for shape in SHAPES[device_type][: 1 if quick else None]:
        kinds = [(shape.batches[0], shape.samples // part) for part in (PARTS[:2] if quick else PARTS)]
        kinds += [] if quick else [(batch, shape.samples) for batch in shape.batches[1:]]
        size = (shape.dataset, shape.image_size, shape.classes)
        plan += [
            Configuration(model, *size, precision, count, batch, samples)
            for count in workers
            for batch, samples in kinds
            for precision in (PRECISIONS[:1] if quick else PRECISIONS)
            for model in networks
        ]
    return plan


def networks_named(names: Sequence[str]) -> tuple[str, ...]:
    """The named small networks, or all of them if no name is given. Raises `MeasureError` for an unknown name."""
    for name in names:
        if name not in NETWORKS:
            raise MeasureError(
                f"network {name!r} is not a small network of the zoo; nearest: {nearest(name, NETWORKS)}; "
                "`precision-time zoo small-` lists them"
            )
    return tuple(dict.fromkeys(names)) or NETWORKS


def collect(
    here: Machine,
    folder: str | Path,
    budget_s: float,
    networks: Sequence[str] = NETWORKS,
    report: Report = no_report,
    quick: bool = False,
) -> RunsTable:
    """Train for `budget_s` seconds in all, continuing the folder's journal, and write its table and data card.

    The budget includes a calibration of this machine (a device file, so that the passes can be predicted), unless the
    folder has one. A configuration that the device cannot run is recorded as refused, and the others go on. Raises
    `DataError` if the folder cannot be used, was begun on another machine, or is in use by another process.
    """
    end = time.monotonic() + budget_s
    target = make_own_folder(folder, [JOURNAL, POINTS])
    with held(target / JOURNAL):
        return _collect(here, target, end, networks, report, quick)


def _collect(
    here: Machine, target: Path, end: float, networks: Sequence[str], report: Report, quick: bool
) -> RunsTable:
    budget_s = end - time.monotonic()
    workers = sorted({1, here.ranks})
    wanted = configurations(networks, workers, here.device_type, quick)
    turns = 1 if quick else TURNS
    if not quick and not (target / DEVICE).exists():
        seconds = min(CALIBRATION_S, max(budget_s / 8, LEAST_RANKS_BUDGET_S))
        content = calibrate(here, seconds, journal=target / POINTS).content
        write(target / DEVICE, content)
    _train(here, target / JOURNAL, wanted, turns, end, report)
    if not (target / JOURNAL).stat().st_size or not read(target / JOURNAL)[1]:
        raise MeasureError(f"no pass found time in {budget_s:.0f} s; raise --budget")
    head, records, _ = read(target / JOURNAL)
    lacking = sum(_lacks(each, turn, records) for each in wanted for turn in range(turns))
    everything = configurations(NETWORKS, workers, here.device_type)  # other networks may have been trained before
    return write_table(target, here, head, everything, records, lacking)


def _train(
    here: Machine, journal: Path, wanted: Sequence[Configuration], turns: int, end: float, report: Report
) -> None:
    """Run all turns, in fresh processes for each turn, shape and number of workers.

    No processes are started when less time is left than they took last time to their first pass.
    """
    records: Mapping[str, Record] = read(journal)[1] if journal.exists() and journal.stat().st_size else {}
    groups: dict[tuple[int, str, int], list[Configuration]] = {}
    for turn in range(turns):
        for each in wanted:
            groups.setdefault((turn, each.dataset, each.workers), []).append(each)
    done, total, start_s = 0, len(wanted) * turns, 0.0
    for (turn, _, count), members in groups.items():
        todo = [each for each in members if _lacks(each, turn, records)]
        done += len(members) - len(todo)
        left = end - time.monotonic()
        if todo and left > start_s:
            task = {
                "task": "runs",
                "device": here.device_type,
                "journal": str(journal.absolute()),
                "turn": turn,
                "end": end,
                "configurations": [asdict(each) for each in todo],
            }
            told = _Told(report, done, total)
            launch(task, count, here.threads, timeout_s=left + PATIENCE_S, report=told)
            start_s = told.first_s
            records = read(journal)[1]
        done += len(todo)
        report(done, total)


class _Told:
    """Adds what earlier processes did to a report; `first_s` is the time until the first one."""

    def __init__(self, report: Report, before: int, total: int) -> None:
        self._report, self._before, self._total = report, before, total
        self._began = time.monotonic()
        self.first_s = 0.0

    def __call__(self, done: int, _total: int) -> None:
        self.first_s = self.first_s or time.monotonic() - self._began
        self._report(self._before + done, self._total)


def turn_label(configuration: Configuration, turn: int) -> str:
    return f"{configuration.label} turn {turn + 1}"


def _lacks(configuration: Configuration, turn: int, records: Mapping[str, Record]) -> bool:
    """Whether this turn is still to be measured: not finished, not refused, and not the third of a long pass."""
    earlier = [records.get(turn_label(configuration, t), {}) for t in range(turn)]
    if any("refused" in record for record in earlier):
        return False
    long = any(record.get("pass_s", 0.0) > LONG_PASS_S for record in earlier)
    return turn_label(configuration, turn) not in records and not (long and turn >= 2)


# --- in the workers -------------------------------------------------------------------------------------------------


def runs_task(task: dict[str, Any], device: torch.device, report: Report) -> dict[str, Any]:
    """Passes of the task's configurations until its end, as `worker` runs them on every rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    journal = Journal(task["journal"], _header(device)) if rank == 0 else None
    data: dict[tuple[int, int], TensorDataset] = {}
    _warm_up_process(device)
    for index, fields in enumerate(task["configurations"]):
        each = Configuration(**fields)
        if not decided_by_rank_0(time.monotonic() < task["end"], device):
            break
        size = (each.image_size, each.classes)
        if size not in data:
            data[size] = _training_set(*size, device.type)
        record = measure_pass(each, data[size], device)
        if journal is not None:
            journal.add(turn_label(each, int(task["turn"])), record)
        report(index + 1, len(task["configurations"]))
    return {}


def _warm_up_process(device: torch.device) -> None:
    """Pay the costs of the first training in a process: imports, threads, connections between the ranks.

    Objects that stay are then frozen, so that the garbage collector does not traverse them before every pass.
    """
    first = Configuration(
        _SMALLEST, "cifar-10", 32, 10, "fp32", dist.get_world_size() if dist.is_initialized() else 1, 8, 16
    )
    for precision in PRECISIONS:
        _pass_s(replace(first, precision=precision).job(), _training_set(32, 10, device.type), first.samples, device)
    gc.collect()
    gc.freeze()


def _header(device: torch.device) -> Record:
    return {**header(device), "machine": description(device.type), "warmup_steps": WARMUP_STEPS}


def _training_set(image_size: int, classes: int, device_type: str) -> TensorDataset:
    """The whole training set of that shape in memory: random images and labels."""
    samples = max(s.samples for s in SHAPES[device_type] if s.image_size == image_size)
    random = torch.Generator().manual_seed(0)
    images = torch.randn(samples, 3, image_size, image_size, generator=random)
    return TensorDataset(images, torch.randint(classes, (samples,), generator=random))


def measure_pass(each: Configuration, data: TensorDataset, device: torch.device) -> Record:
    """One pass: {"pass_s", "cost_s" (with building and warm-up), conditions}, or {"refused": reason}.

    Raises `MeasureError` for another failure among several ranks, whose other ranks may be waiting for this one.
    """
    begin = time.perf_counter()
    try:
        pass_s = _pass_s(each.job(), data, each.samples, device)
    except UnsupportedError as error:  # raised by every rank before any communication
        return {"refused": str(error)}
    except (RuntimeError, NotImplementedError, PrecisionTimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if dist.is_initialized():
            raise MeasureError(
                f"{each.label} cannot be trained here ({reason}); name the other networks with --only"
            ) from error
        return {"refused": reason}
    cost_s = time.perf_counter() - begin
    return {"pass_s": pass_s, "cost_s": float(f"{cost_s:.5g}"), **conditions(device)}


def _pass_s(job: Job, data: TensorDataset, samples: int, device: torch.device) -> float:
    """Seconds from the request of the first batch to the end of the last update, on the slowest rank."""
    part = Subset(data, range(samples))
    sampler = DistributedSampler(part, dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else None
    loader = DataLoader(part, job.batch_size, shuffle=sampler is None, sampler=sampler, num_workers=0)
    with settings(job, device):
        trainer = Trainer(job, device)
        warm = iter(loader)
        for _ in range(WARMUP_STEPS):
            batch = next(warm, None)
            if batch is None:
                warm = iter(loader)
                batch = next(warm)
            trainer.step(_to_device(batch, device))
        del warm
        wait(device)
        gc.collect()
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        for batch in loader:
            trainer.step(_to_device(batch, device))
        wait(device)
        seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64, device=device)
    if dist.is_initialized():
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(f"{float(seconds):.5g}")


def _to_device(batch: Sequence[torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    image, label = batch
    return {"image": image.to(device, non_blocking=True), "label": label.to(device, non_blocking=True)}
