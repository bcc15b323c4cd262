"""The errors of held-out predictions in the numbers of the report, as fractions, and as rows of its tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.papers.boosting_held_out import HeldOut
from benchmarks.papers.study import Table
from precision_time.job.job import Job
from precision_time.predictors.interface import MeasuredJob
from precision_time.predictors.published import job_group

HEADER = ("rows", "MAPE, %", "median, %", "P90, %", "signed mean, %", "in P10-P90, %")
Chosen = Callable[[MeasuredJob], bool]


@dataclass(frozen=True, slots=True)
class Score:
    """error = predicted / measured - 1; `coverage` is the share of rows inside P10-P90."""

    n: int
    mape: float
    median: float
    p90: float
    signed: float
    coverage: float

    @classmethod
    def of(cls, measured: Sequence[MeasuredJob], run: HeldOut, chosen: Chosen = lambda each: True) -> Score:
        at = [i for i in run.rows if chosen(measured[i])]
        if not at:
            return cls(0, *(float("nan"),) * 5)
        truth = np.array([measured[i].seconds for i in at])
        found = [run.forecasts[i] for i in at]
        errors = np.array([f.seconds for f in found]) / truth - 1.0
        inside = [f.p10_s <= t <= f.p90_s for f, t in zip(found, truth, strict=True)]
        size = np.abs(errors)
        return cls(
            len(at), float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(errors.mean()),
            float(np.mean(inside)),
        )  # fmt: skip

    @property
    def cells(self) -> tuple[str, ...]:
        """As `HEADER` names them."""
        if not self.n:
            return ("0", *["-"] * (len(HEADER) - 1))
        shares = (self.mape, self.median, self.p90)
        return (
            str(self.n), *(f"{100 * each:.1f}" for each in shares), f"{100 * self.signed:+.1f}",
            f"{100 * self.coverage:.0f}",
        )  # fmt: skip


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def scores(measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut]) -> dict[str, dict[str, Any]]:
    """Of every run: all rows, by precision and by family."""
    found: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        judged = [measured[i] for i in run.rows]
        by = {"precision": sorted({m.precision for m in judged}), "family": sorted({m.family for m in judged})}
        found[name] = {
            "all": asdict(Score.of(measured, run)),
            **{word: {kind: asdict(Score.of(measured, run, having(word, kind))) for kind in by[word]} for word in by},
        }
    return found


def having(word: str, kind: str, gpus: Collection[str] | None = None) -> Chosen:
    """Jobs of a precision or a family (`word`), on some GPUs alone where these are given; "all" is any."""
    return lambda each: kind in ("all", getattr(each, word)) and (gpus is None or each.job.gpu in gpus)


def by_run(
    caption: str, measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut], names: Mapping[str, str]
) -> Table:
    """A row for every run: `names` says how each is called."""
    rows = [(names[key], *Score.of(measured, runs[key]).cells) for key in names if key in runs]
    return Table(caption, ("held out", *HEADER), tuple(rows))


def by_kind(
    caption: str, measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut], names: Mapping[str, str], word: str
) -> Table:
    """A row for every precision or family (`word`) of every run."""
    rows = []
    for key, label in names.items():
        if key in runs:
            kinds = sorted({getattr(measured[i], word) for i in runs[key].rows})
            rows += [(label, kind, *Score.of(measured, runs[key], having(word, kind)).cells) for kind in kinds]
    return Table(caption, ("held out", word, *HEADER), tuple(rows))


def moved_by_precision(measured: Sequence[MeasuredJob]) -> list[float]:
    """Slowest over fastest precision of every job that was measured in several, the batch and accumulation alike."""
    found: dict[str, dict[str, float]] = {}
    for each in measured:
        key = f"{job_group(each)}|{each.job.batch_size}|{each.job.grad_accum}"
        found.setdefault(key, {})[each.precision] = each.seconds
    return sorted(max(times.values()) / min(times.values()) for times in found.values() if len(times) > 1)


def timing_of(call: Callable[[Job], Any], jobs: Sequence[Job], calls: int = 30) -> float:
    """Median seconds of a call on this machine, each job asked about once before."""
    for job in jobs:
        call(job)
    spent = []
    for i in range(calls):
        start = time.perf_counter()
        call(jobs[i % len(jobs)])
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)
