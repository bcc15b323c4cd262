"""Precision-blind twins: a predictor that takes every job to run in one precision.

A twin is its predictor with `Blind` before it: `class BlindSimulator(Blind, Simulator)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from precision_time.errors import MissingPeakError, PredictorError
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.placement import catalog_of
from precision_time.predictors.interface import MeasuredJob
from precision_time.timing.kernels import compute_peak


class PrecisionAware:
    """Methods of a predictor that `Blind` overrides: here jobs are taken in their own precision."""

    name: str
    aware = True

    def _view(self, job: Job) -> Job:
        """The job whose features are taken."""
        return job

    def _training_rows(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        """The measured jobs that the predictor is fitted to."""
        return measured

    def _settings(self) -> dict[str, Any]:
        """Arguments of the constructor, for the saved file."""
        return {}

    @classmethod
    def _arguments(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the constructor, from the saved file."""
        return {}

    @classmethod
    def _from(cls, content: dict[str, Any]) -> Self:
        return cls(**cls._arguments(content))


class Blind(PrecisionAware):
    """Takes every job in `precision`.

    It is fitted to the jobs measured in that precision, or with `everything` to all jobs as if they had run in it.
    """

    aware = False

    def __init__(self, precision: str = "fp32", everything: bool = False, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.precision = parse_precision(precision).label
        self.everything = everything

    def _view(self, job: Job) -> Job:
        return in_precision(job, self.precision)

    def _training_rows(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        return measured if self.everything else measured_in(measured, self.precision, self.name)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "precision": self.precision, "everything": self.everything}

    @classmethod
    def _arguments(cls, content: dict[str, Any]) -> dict[str, Any]:
        return {
            **super()._arguments(content),
            "precision": content["precision"],
            "everything": content["everything"],
        }


def in_precision(job: Job, precision: str) -> Job:
    """The job in `precision`, or in fp32 where its GPU has no unit for that precision."""
    try:
        compute_peak(catalog_of(job).gpu(job.gpu), parse_precision(precision).math, "")
    except MissingPeakError:
        precision = "fp32"
    return job.replace(precision=precision, communication_dtype=None)


def measured_in(measured: Sequence[MeasuredJob], precision: str, name: str) -> list[MeasuredJob]:
    """The jobs measured in one precision; `PredictorError` where there are none."""
    chosen = [each for each in measured if each.precision == precision]
    if not chosen:
        others = ", ".join(sorted({each.precision for each in measured})) or "none"
        raise PredictorError(f"{name}: no measured job ran in precision {precision!r}; measured ones: {others}")
    return chosen
