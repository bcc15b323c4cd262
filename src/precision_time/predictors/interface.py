"""The interface of every predictor, so that all are trained and judged on the same measured jobs.

**The time of a job** is the seconds of its `run` where that has a length, else of one optimizer step. Published rows
are steps; real runs are passes over a data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from precision_time.errors import JobError
from precision_time.job.datasets import samples_per_epoch
from precision_time.job.job import Job

if TYPE_CHECKING:
    from precision_time.predictors.facts import Facts

Z90 = 1.2815515655446004
"""Standard deviations from the median to the ninth decile of a normal distribution."""


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job and its measured time.

    seconds     median of the repeats
    cost_s      seconds spent on measuring it (repeats, warm-up)
    family      model family, for leaving out families
    dataset     type of data it trains on ("" where unknown)
    log_spread  standard deviation of log(seconds) between repeats, None where measured once
    facts       counts of the job's operations where they are known without tracing its model
    """

    id: str
    job: Job
    seconds: float
    family: str
    dataset: str = ""
    cost_s: float = 0.0
    log_spread: float | None = None
    facts: Facts | None = field(default=None, compare=False, repr=False)

    @property
    def precision(self) -> str:
        return self.job.precision_spec.label


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a job (see the module) with P10 and P90.

    `confidence` in [0, 1] is the similarity to the training jobs, None where the predictor has no such measure; `notes`
    are sentences for the reader (out of distribution, extrapolated ...).
    """

    seconds: float
    p10_s: float
    p90_s: float
    confidence: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def spread(
        cls, seconds: float, log_spread: float, confidence: float | None = None, notes: tuple[str, ...] = ()
    ) -> Forecast:
        """A log-normal forecast; `log_spread` is the standard deviation of log(seconds)."""
        factor = math.exp(Z90 * log_spread)
        return cls(seconds, seconds / factor, seconds * factor, confidence, notes)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of training: runs and seconds of measuring jobs (or operators), and seconds of fitting."""

    runs: int
    measured_s: float
    fit_s: float


@runtime_checkable
class Predictor(Protocol):
    """A predictor; `registry.py` names the classes.

    `fit` replaces the result of an earlier `fit`. `predict` raises a `PredictorError` that names what is missing (not
    trained, another data set type, another device). `save` writes plain files (JSON, text, npz), never pickles, into a
    folder; `load` reads them back and predicts the same up to rounding.
    """

    name: str

    def fit(self, measured: Sequence[MeasuredJob]) -> None: ...

    def predict(self, job: Job) -> Forecast: ...

    def save(self, folder: Path) -> None: ...

    @classmethod
    def load(cls, folder: Path) -> Predictor: ...

    def cost(self) -> Cost: ...

    def held_out(self) -> Mapping[str, float]:
        """Mean error as a share on rows that parts of the training rows were fitted without, by what was left out."""
        ...


def steps_of(job: Job) -> float:
    """Optimizer steps of the job's run, rounded up; 1 where the run has no length."""
    run = job.run
    if run.steps is not None:
        return float(run.steps)
    if run.samples is not None:
        return float(math.ceil(run.samples / global_batch_size(job)))
    if run.epochs is not None:
        return float(math.ceil(run.epochs * _steps_per_epoch(job)))
    return 1.0


def _steps_per_epoch(job: Job) -> int:
    run = job.run
    if run.steps_per_epoch is not None:
        return run.steps_per_epoch
    if run.dataset_size is None and run.dataset is None:
        raise JobError(f"run.epochs {run.epochs} needs to know the data; add run.dataset or run.dataset_size")
    seq_len = job.input.get("seq_len")
    tokens = int(seq_len) if isinstance(seq_len, (int, float)) else None
    size = run.dataset_size or samples_per_epoch(run.dataset or "", tokens)
    return math.ceil(size / global_batch_size(job))


def global_batch_size(job: Job) -> int:
    """Samples of one optimizer step over all ranks."""
    if job.batch_size is None:
        raise JobError("the job gives no batch_size; add it")
    return job.batch_size * job.grad_accum * job.layout_spec.dp
