"""Predictions beside what was measured: their error statistics, by precision and family, and tables of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.papers.study import Table
from precision_time.job.job import Job
from precision_time.job.precision import PRECISIONS
from precision_time.predictors.interface import Forecast, MeasuredJob
from precision_time.predictors.published import job_group
from precision_time.report.errors import ErrorStatistics, labels

FIELDS = ("n", "mape", "median_ape", "p90_ape", "signed_mean", "coverage_p10_p90")
HEADER = tuple(labels(FIELDS))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured job and its forecast by a predictor that was not fitted to it."""

    measured: MeasuredJob
    forecast: Forecast

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.forecast.seconds / self.measured.seconds - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measured time lies between P10 and P90."""
        return self.forecast.p10_s <= self.measured.seconds <= self.forecast.p90_s


Predictions = Sequence[Prediction]
Runs = Mapping[str, Predictions]
"""Name of a held-out run -> its predictions."""
Filter = Callable[[MeasuredJob], bool]


def score(predictions: Predictions, chosen: Filter = lambda measured: True) -> ErrorStatistics:
    """Statistics of the errors on the chosen jobs."""
    some = [each for each in predictions if chosen(each.measured)]
    return ErrorStatistics.of([each.error for each in some], [each.inside for each in some])


def mape(predictions: Predictions, chosen: Filter = lambda measured: True) -> float:
    """Mean absolute error on the chosen jobs, as a fraction; nan where none is chosen."""
    value = score(predictions, chosen).mape
    return math.nan if value is None else value


def having(field: str, value: str, gpus: Collection[str] | None = None) -> Filter:
    """Jobs with this `precision` or `family` ("all": any), on these GPUs where they are given."""
    return lambda each: value in ("all", getattr(each, field)) and (gpus is None or each.job.gpu in gpus)


def precisions_in_order(measured: Sequence[MeasuredJob]) -> list[str]:
    """The precisions of the jobs, in the project's order, unknown ones last."""
    names = {each.precision for each in measured}
    return [*(name for name in PRECISIONS if name in names), *sorted(names - set(PRECISIONS))]


def by_precision(predictions: Predictions) -> dict[str, ErrorStatistics]:
    """Statistics of all predictions ("all") and of each precision."""
    names = sorted({each.measured.precision for each in predictions})
    return {name: score(predictions, having("precision", name)) for name in ("all", *names)}


def scores(runs: Runs) -> dict[str, dict[str, Any]]:
    """Of every run, for the JSON: all jobs, and those of each precision and family."""
    return {
        name: {
            "all": score(run).to_dict(),
            **{
                field: {value: score(run, having(field, value)).to_dict() for value in _values(run, field)}
                for field in ("precision", "family")
            },
        }
        for name, run in runs.items()
    }


def _values(run: Predictions, field: str) -> list[str]:
    return sorted({getattr(each.measured, field) for each in run})


def table_of_runs(caption: str, runs: Runs, names: Mapping[str, str]) -> Table:
    """A row for every run; `names` maps a run to its label, in the order of the table."""
    rows = [(label, *score(runs[key]).cells(FIELDS)) for key, label in names.items() if key in runs]
    return Table(caption, ("held out", *HEADER), tuple(rows))


def table_by(caption: str, runs: Runs, names: Mapping[str, str], field: str) -> Table:
    """A row for every `precision` or `family` of every run."""
    rows = [
        (label, value, *score(runs[key], having(field, value)).cells(FIELDS))
        for key, label in names.items()
        if key in runs
        for value in _values(runs[key], field)
    ]
    return Table(caption, ("held out", field, *HEADER), tuple(rows), left=2)


def times_by_precision(measured: Sequence[MeasuredJob]) -> list[dict[str, float]]:
    """Seconds by precision, of every job that was measured in several with the same batch and accumulation."""
    times_of: dict[str, dict[str, float]] = {}
    for each in measured:
        key = f"{job_group(each)}|{each.job.batch_size}|{each.job.grad_accum}"
        times_of.setdefault(key, {})[each.precision] = each.seconds
    return [times for times in times_of.values() if len(times) > 1]


def precision_ratios(measured: Sequence[MeasuredJob]) -> list[float]:
    """Slowest over fastest precision of every job that was measured in several, sorted."""
    return sorted(max(times.values()) / min(times.values()) for times in times_by_precision(measured))


def call_seconds(call: Callable[[Job], Any], jobs: Sequence[Job], calls: int = 30) -> float:
    """Median seconds of a warm call on this machine: each job is asked about once before."""
    for job in jobs:
        call(job)
    spent = []
    for i in range(calls):
        start = time.perf_counter()
        call(jobs[i % len(jobs)])
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)
