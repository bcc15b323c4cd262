"""Published memory brackets: batches of which one ran on a device and the next larger one did not.

`precision-time fit brackets` traces them into `data/traced/brackets.parquet`: the bytes of live tensors at both
batches, so that the fit of memory needs neither models nor graphs. It needs torch and timm and takes half an hour; an
interrupted run continues.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.capture.training_step import training_step
from precision_time.errors import DataError, PrecisionTimeError
from precision_time.estimate.memory import FRAMEWORK, Memory
from precision_time.estimate.step_memory import step_memory
from precision_time.fit.traced_rows import another_today, family_of
from precision_time.job.code import CodeRule
from precision_time.job.job import Job
from precision_time.layout.options import Options
from precision_time.layout.step_program import step_program

TABLE, BRACKETS = Path("published") / "memory_brackets.csv", Path("traced") / "brackets.parquet"
_PART = Path("traced") / "brackets.part"
"""One line of JSON per traced model, until all are."""


@dataclass(frozen=True, slots=True, eq=False)
class Brackets:
    """Traced brackets as columns.

    fits, fails  bytes of live tensors at the fullest moment of a step: at the batch that ran, at the one that did not
    capacity     bytes of the device, as printed on the box
    """

    id: tuple[str, ...]
    family: NDArray[np.str_]
    image_size: NDArray[np.intp]
    precision: NDArray[np.str_]
    memory_format: NDArray[np.str_]
    torch: NDArray[np.str_]
    fits: NDArray[np.float64]
    fails: NDArray[np.float64]
    capacity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.id)


_DATA = CodeRule("a line of the table of brackets")


def job_of(cells: Mapping[str, str], batch: int) -> Job:
    """A line of the table at a batch, as its source ran it: timm's benchmark under PyTorch 1.10 to 1.12."""
    return Job(
        cells["model"],
        input={"image_size": int(cells["image_size"])},
        precision=cells["precision"],
        batch_size=batch,
        gpu=cells["gpu"],
        optimizer=cells["optimizer"],
        memory_format=cells["memory_format"],
        torch=torch_of(cells["id"]),
        attention="math",
        optimizer_impl="torch1",
        code=_DATA,
    )


def torch_of(name: str) -> str:
    """The version of PyTorch that a line's id ends with: 1.12 of "...-pt112"."""
    digits = name.rpartition("-pt")[2]
    return f"{digits[0]}.{digits[1:]}"


def live_bytes(memory: Memory) -> int:
    """Bytes of live tensors at the peak: all but what the framework holds beside them."""
    return memory.peak_bytes - memory.by_category[FRAMEWORK]


def read_table(tables: Path) -> list[dict[str, str]]:
    """The lines of the table below the folder `tables`. Raises `DataError` where it is not there."""
    try:
        with (tables / TABLE).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DataError(f"folder {str(tables)!r} has no {TABLE}: {error.strerror}") from None


def traced(lines: Sequence[Mapping[str, str]]) -> list[tuple[str, int, int]]:
    """(id, bytes at the batch that ran, bytes at the one that did not) of lines that differ in versions and batches
    alone; lines whose model cannot be traced are said and left out."""
    known: dict[tuple[int, bool], int] = {}
    found: list[tuple[str, int, int]] = []
    for cells in lines:
        sizes = []
        if reason := another_today(cells["model"], torch_of(cells["id"])):
            print(f"\n{cells['id']}: {reason}", file=sys.stderr)
            continue
        try:
            for name in ("fits_batch", "fails_batch"):
                job = job_of(cells, int(cells[name]))
                key = job.batch_size or 0, job.keeps_softmax_inputs
                if key not in known:
                    step, options = training_step(job), Options.of(job)
                    program = step_program(step, job.layout_spec, options)
                    known[key] = live_bytes(step_memory(step, program, options, 1))
                sizes.append(known[key])
        except PrecisionTimeError as error:
            print(f"\n{cells['id']}: {error}", file=sys.stderr)
            continue
        found.append((cells["id"], sizes[0], sizes[1]))
    return found


def _groups(lines: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    groups: dict[str, list[dict[str, str]]] = {}
    for cells in lines:
        groups.setdefault(f"{cells['model']}|{cells['image_size']}|{cells['memory_format']}", []).append(cells)
    return groups


def run(tables: Path) -> None:
    """Trace every line of the table below `tables` and write BRACKETS there."""
    groups = _groups(read_table(tables))
    part = tables / _PART
    done: dict[str, list[Any]] = {}
    if part.is_file():
        for line in part.read_text(encoding="utf-8").splitlines():
            name, found = json.loads(line)
            done[name] = found
    left = [name for name in groups if name not in done]
    with part.open("a", encoding="utf-8") as file, ProcessPoolExecutor(os.cpu_count()) as pool:
        for count, (name, found) in enumerate(
            zip(left, pool.map(traced, [groups[name] for name in left]), strict=True), 1
        ):
            print(f"\rtracing model {len(groups) - len(left) + count}/{len(groups)}", end="", file=sys.stderr)
            done[name] = found
            file.write(json.dumps([name, found]) + "\n")
            file.flush()
    print(file=sys.stderr)
    _write(tables, groups, done)
    part.unlink()


def _write(tables: Path, groups: Mapping[str, Sequence[Mapping[str, str]]], done: Mapping[str, list[Any]]) -> None:
    import pandas as pd

    family = {name: family_of(lines[0]["model"]) for name, lines in groups.items() if done[name]}
    rows = [(each[0], family[name], each[1], each[2]) for name in groups for each in done[name]]
    table = pd.DataFrame(rows, columns=["id", "family", "fits_bytes", "fails_bytes"])
    table.to_parquet(tables / BRACKETS, compression="zstd", index=False)
    print(f"{len(table)} brackets -> {tables / BRACKETS}", file=sys.stderr)


def read(tables: Path) -> Brackets:
    """The traced brackets. Raises `DataError` where they were not traced."""
    import pandas as pd

    if not (tables / BRACKETS).is_file():
        raise DataError(f"folder {str(tables)!r} has no {BRACKETS}; precision-time fit brackets writes it")
    traced = pd.read_parquet(tables / BRACKETS).set_index("id")
    lines = [cells for cells in read_table(tables) if cells["id"] in traced.index]
    traced = traced.loc[[cells["id"] for cells in lines]]

    def column(name: str, kind: Any) -> NDArray[Any]:
        return np.array([kind(cells[name]) for cells in lines])

    return Brackets(
        tuple(cells["id"] for cells in lines),
        traced["family"].to_numpy(dtype=np.str_),
        column("image_size", int),
        column("precision", str),
        column("memory_format", str),
        np.array([torch_of(cells["id"]) for cells in lines]),
        traced["fits_bytes"].to_numpy(np.float64),
        traced["fails_bytes"].to_numpy(np.float64),
        column("memory_gib", float) * 2.0**30,
    )
