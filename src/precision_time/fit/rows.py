"""Rows of the measurement tables as jobs: the reader behind the fits (schema: the data's README).

Where a row leaves a field empty, the likeliest default of its framework is taken; `Row.assumed` says which.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precision_time.errors import DataError, PrecisionTimeError
from precision_time.job.fields import parse_fields
from precision_time.job.job import Job

_EXECUTION = {"pytorch": "eager", "tensorflow1": "torchscript", "tensorflow2": "torchscript", "mxnet": "torchscript",
              "paddle": "torchscript"}  # fmt: skip
"""Execution of a framework whose row names none: static graphs launch without autograd and fuse a little."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured job. `job` is None where it cannot be expressed; `reason` says why."""

    id: str
    line: int
    trust: str
    framework: str
    model: str
    gpu: str
    precision: str
    gpus: int
    measured_s: float
    job: Job | None
    reason: str = ""


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of a table; `DataError` when the file is no measurement table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames is None or "step_time_s" not in reader.fieldnames:
                raise DataError(f"{path.name} is no measurement table: it has no column step_time_s")
            for line, cells in enumerate(reader, 2):
                yield _row(line, cells)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _row(line: int, cells: dict[str, str]) -> Row:
    job, reason = None, ""
    try:
        job = _job(cells)
    except (PrecisionTimeError, ValueError) as error:
        reason = str(error)
    return Row(
        cells["id"], line, cells["trust"], cells["framework"], cells["model"], cells["gpu"], cells["precision"],
        int(cells["gpus"]), float(cells["step_time_s"]), job, reason,
    )  # fmt: skip


def _job(cells: dict[str, str]) -> Job:
    notes = cells["notes"].lower()
    optimizer = cells["optimizer"] or None
    implementation = None
    by_tensor = optimizer in ("sgd", "rmsprop", "adam", "adamw") or "torchscript lamb" in notes
    if cells["framework"] == "pytorch" and "fused" not in notes and by_tensor:
        implementation = "single"  # torch.optim of 2020-2022, and a scripted LAMB, loop over the tensors
    elif cells["framework"] != "pytorch" or "fused" in notes or optimizer in ("lamb", "novograd"):
        implementation = "fused"
    return Job(
        cells["model"],
        model_config=parse_fields(cells["model_config"], "model_config"),
        input=parse_fields(cells["input"], "input"),
        precision=cells["precision"],
        batch_size=int(cells["batch_size"]),
        grad_accum=int(cells["grad_accum"] or 1),
        gpu=cells["gpu"],
        gpus=int(cells["gpus"]),
        nodes=int(cells["nodes"]) if cells["nodes"] else None,
        system=cells["system"] or None,
        layout=cells["parallelism"] or "dp",
        optimizer=optimizer,
        optimizer_impl=implementation,
        memory_format=cells["memory_format"] or "nchw",
        attention=cells["attention"] or "flash",
        recompute=cells["recompute"] or "none",
        execution=cells["execution"] or _EXECUTION.get(cells["framework"], "eager"),
        no_sync="no no_sync" not in notes,
    )
