"""Predictions of many jobs: seconds, or the reason why there are none, in the order of the jobs.

Jobs that share a traced graph are predicted one after another, so that the graph is read or traced once. Many graphs
are shared among processes; the results are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.interval import Interval
from precision_time.job.job import Job
from precision_time.processes import Workers, cores, map_chunks

if TYPE_CHECKING:
    from precision_time.anchoring import Anchoring

GRAPHS_PER_WORKER = 12
"""Starting a worker costs 0.5 s (4 s with torch) and a graph 0.02 to 0.7 s, so fewer graphs are run in one process."""
MOST_WORKERS = 8
"""A worker that traces holds about a gigabyte."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The seconds of a step and of its terms, and whether memory suffices; without a `step`, the reason."""

    step: Interval | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    fits: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A job to predict, and the anchors that may correct the prediction (None: those that `predict` uses)."""

    job: Job
    anchoring: Anchoring | None = None


def forecast(question: Question) -> Forecast:
    """One prediction. An internal error becomes a reason too, so that one row cannot end a run over thousands."""
    from precision_time.anchoring import USUAL
    from precision_time.prediction import predict

    try:
        estimate = predict(question.job, anchoring=question.anchoring or USUAL)
    except PrecisionTimeError as error:
        return Forecast(reason=" ".join(str(error).split()))
    except Exception as error:
        return Forecast(reason=f"internal error: {type(error).__name__}: {' '.join(str(error).split())}")
    step = Interval(float(estimate.step.p10), float(estimate.step.p50), float(estimate.step.p90))
    if not (step.p10 > 0.0 and math.isfinite(step.p90)):
        return Forecast(reason=f"internal error: the predicted step is {step.p50} s")
    return Forecast(step, {k: float(v) for k, v in estimate.breakdown.items()}, bool(estimate.memory.fits))


def forecast_all(
    jobs: Sequence[Question], workers: Workers = None, progress: Callable[[int, int], None] | None = None
) -> list[Forecast]:
    """The forecast of every job, in order; parameters as for `evaluate`."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(_graph_key(job.job), []).append(index)
    chunks = [groups[key] for key in sorted(groups)]
    count = _workers_for(len(chunks)) if workers is None else workers
    if isinstance(count, int):
        count = min(count, len(chunks))
    return map_chunks(forecast, jobs, chunks, count, progress)


def _graph_key(job: Job) -> tuple[str, ...]:
    """The fields that the traced step depends on, as text to sort."""
    fields = (job.model, dict(job.model_config), dict(job.input), job.batch_size, job.attention, job.execution)
    return tuple(map(str, (*fields, job.precision)))


def _workers_for(graphs: int) -> int:
    return max(1, min(cores(), MOST_WORKERS, graphs // GRAPHS_PER_WORKER))
