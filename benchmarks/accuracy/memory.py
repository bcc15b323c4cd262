"""Whether jobs fit: published memory brackets held out by family, and large models that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.memory import MemoryParameters
from precision_time.fit.brackets import read, read_table
from precision_time.fit.memory import Judged, families, fitted, judge
from precision_time.largest_batch import memory_of
from precision_time.measurements.repository import LARGE_TABLES
from precision_time.measurements.table import read_table as read_measured
from precision_time.report.table import Table

_WORST = 40
_BINS = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
_SIZES = (0, 240, 320, 1024)


@dataclass(frozen=True, slots=True)
class Large:
    """A published large model that ran: whether it is predicted to fit, and with twice the micro-batch."""

    id: str
    framework: str
    pressure: float
    fits: bool
    fits_doubled: bool


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that memory.md says. `untraced`: brackets that today's libraries cannot rebuild."""

    brackets: Judged
    parameters: MemoryParameters
    untraced: tuple[str, ...]
    large: tuple[Large, ...]
    left_out: tuple[str, ...]


def board(tables: Path, progress: Callable[[str], None]) -> Board:
    """Judge the brackets of `tables` and the large models there."""
    brackets = read(tables)
    known = set(brackets.id)
    untraced = tuple(cells["id"] for cells in read_table(tables) if cells["id"] not in known)
    progress("memory brackets")
    judged = judge(brackets)
    large, left_out = _large(tables, progress)
    return Board(judged, fitted(brackets), untraced, large, left_out)


def _large(tables: Path, progress: Callable[[str], None]) -> tuple[tuple[Large, ...], tuple[str, ...]]:
    found: list[Large] = []
    left_out: list[str] = []
    for name in LARGE_TABLES:
        for row in read_measured(tables / name).rows:
            if row.job is None:
                continue
            progress(f"large model {len(found)}")
            try:
                memory = memory_of(row.job)
                doubled = memory_of(row.job.replace(batch_size=2 * (row.job.batch_size or 1)))
            except PrecisionTimeError as error:
                left_out.append(f"{row.id}: {error}")
                continue
            found.append(Large(row.id, row.framework, memory.pressure, memory.fits, doubled.fits))
    return tuple(found), tuple(left_out)


def _share(values: NDArray[np.bool_]) -> str:
    return f"{values.mean():.0%}" if len(values) else "-"


def _cells(judged: Judged, kept: NDArray[np.bool_]) -> list[str]:
    low = judged.least_error[kept]
    return [
        f"{int(kept.sum()):,}",
        _share(judged.fits[kept]),
        _share(judged.fails[kept]),
        f"{np.expm1(low).mean():+.1%}",
    ]


HEADS = ("brackets", "fits right", "does not fit right", "signed error, at least")


def by_group(judged: Judged) -> Table:
    """Right answers of all brackets, by precision, memory format, version of PyTorch and image size."""
    brackets = judged.brackets
    groups: dict[str, NDArray[np.bool_]] = {"all": np.ones(len(brackets), dtype=np.bool_)}
    for title, values in (("", brackets.precision), ("", brackets.memory_format), ("PyTorch ", brackets.torch)):
        groups |= {f"{title}{value}": values == value for value in np.unique(values)}
    for least, most in pairwise(_SIZES):
        inside = (brackets.image_size > least) & (brackets.image_size <= most)
        groups[f"images of {least + 1} to {most} pixels" if least else f"images up to {most} pixels"] = inside
    return Table(["held out by family", *HEADS], [[name, *_cells(judged, kept)] for name, kept in groups.items()])


def by_family(judged: Judged) -> Table:
    """The same by family."""
    return Table(["family", *HEADS], [[name, *_cells(judged, kept)] for name, kept in families(judged.brackets)])


def reliability(judged: Judged) -> Table:
    """By predicted probability of fitting, how many batches of the brackets ran."""
    predicted = np.concatenate(judged.probability)
    ran = np.repeat([True, False], len(judged.fits))
    rows = []
    for least, most in pairwise(_BINS):
        inside = (predicted >= least) & ((predicted < most) | (most == 1.0))
        rows.append([f"{least:.0%} to {most:.0%}", f"{int(inside.sum()):,}", _share(ran[inside])])
    return Table(["predicted to fit with", "batches", "ran"], rows)


def misses(judged: Judged) -> Table:
    """Models whose brackets are furthest off; the versions and formats of one model as one line."""
    brackets = judged.brackets
    worst: dict[str, list[float]] = {}
    for name, error in zip(brackets.id, np.expm1(judged.least_error), strict=True):
        if error:
            worst.setdefault(_model(name), []).append(float(error))
    order = sorted(worst.items(), key=lambda item: -max(map(abs, item[1])))[:_WORST]
    rows = [[name, CAUSES.get(name, ""), str(len(errors)), f"{max(errors, key=abs):+.0%}"] for name, errors in order]
    return Table(["model", "why", "brackets missed", "furthest off, at least"], rows, left=2)


def _model(name: str) -> str:
    return name.removeprefix("timm-").rpartition("-pt")[0].rpartition("-")[0]


_EXPERTS = "one sample in NHWC with two versions, 384 with the third: an error, not memory"
_HALVED = "half of what ran with 1.10 and 1.11 ran with 1.12"
CAUSES: Mapping[str, str] = {
    **dict.fromkeys(
        [f"{start}efficientnet_cc_{size}" for start in ("", "tf_") for size in ("b0_4e", "b0_8e", "b1_8e")], _EXPERTS
    ),
    "resnetv2_101x1_bitm": _HALVED,
}
"""Model -> why its brackets are missed, where that is known."""


def _large_table(large: Sequence[Large]) -> Table:
    rows: list[list[Any]] = []
    for framework in dict.fromkeys(each.framework for each in large):
        of = [each for each in large if each.framework == framework]
        doubled = sum(not each.fits_doubled for each in of)
        rows.append([framework, str(len(of)), str(sum(each.fits for each in of)), str(doubled)])
    return Table(["framework", "jobs that ran", "fit", "would not with twice the micro-batch"], rows)


def page(of: Board) -> str:
    """memory.md."""
    found, judged = of.parameters, of.brackets
    short = sorted((each for each in of.large if not each.fits), key=lambda each: -each.pressure)
    listed = Table(["ran, predicted not to fit", "peak / capacity"], [[e.id, f"{e.pressure:.2f}"] for e in short])
    return f"""# Does it fit?

Written by `python -m benchmarks.accuracy memory`. `data/published/memory_brackets.csv` has, for image networks of timm
on one GPU of 24 GB, a batch that ran and the next larger one, which did not.
{len(judged.fits):,} of its lines are judged here, each by parameters that were fitted without its family;
{len(of.untraced)} name models that today's timm no longer has, or has otherwise than they were measured.

*Fits right*: the batch that ran is predicted to fit. *Does not fit right*: the next is predicted not to. The *signed
error, at least* is the mean of the least factors by which predicted peaks must be off; above 0 too much memory is
predicted.

{by_group(judged).markdown()}

The shipped parameters, fitted to all: {found.process_bytes / 2**30:.2f} GiB of a process besides tensors (what the
driver keeps, context, libraries), {found.fragmentation:.0%} of live tensors for fragmentation (assumed), scale of
log(peak) {found.log_scale} (logistic).

{reliability(judged).markdown()}

## By family

{by_family(judged).markdown()}

## Furthest off

{misses(judged).markdown()}

Not traced: {", ".join(of.untraced) or "none"}.

## Large models that ran

The micro-batches of llm-foundry were chosen as large as possible, so most of its jobs should not fit with twice the
micro-batch. Recipes of Megatron-Bridge recompute or offload what its tables do not say. {len(of.left_out)} jobs could
not be predicted.

{_large_table(of.large).markdown()}

{listed.markdown()}
"""
