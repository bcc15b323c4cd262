"""What a predictor sees of jobs: all there is, or, for its precision-blind twin, one precision alone.

A twin is its predictor with `Blind` before it: `class BlindLine(Blind, Line)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from precision_time.errors import MissingPeakError, PredictorError
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.prediction import catalog_of
from precision_time.predictors.interface import MeasuredJob
from precision_time.timing.kernels import compute_peak


class Seeing:
    """Hooks of a predictor that sees the precision; `_own` is what beside a predictor's own words is saved."""

    name: str
    aware = True

    def _seen(self, job: Job) -> Job:
        return job

    def _taught(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        return measured

    def _own(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _words(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the constructor from what was saved."""
        return {}

    @classmethod
    def _from(cls, content: dict[str, Any]) -> Self:
        return cls(**cls._words(content))


class Blind(Seeing):
    """With the dtype frozen: every job is one in `precision`, and those measured in it alone teach; with `everything`,
    all do, as if they had run in it."""

    aware = False

    def __init__(self, precision: str = "fp32", everything: bool = False, **words: Any) -> None:
        super().__init__(**words)
        self.precision = parse_precision(precision).label
        self.everything = everything

    def _seen(self, job: Job) -> Job:
        return frozen(job, self.precision)

    def _taught(self, measured: Sequence[MeasuredJob]) -> Sequence[MeasuredJob]:
        return measured if self.everything else only(measured, self.precision, self.name)

    def _own(self) -> dict[str, Any]:
        return {**super()._own(), "precision": self.precision, "everything": self.everything}

    @classmethod
    def _words(cls, content: dict[str, Any]) -> dict[str, Any]:
        return {**super()._words(content), "precision": content["precision"], "everything": content["everything"]}


def frozen(job: Job, precision: str) -> Job:
    """The job as one sees it who takes all jobs to run in `precision`, or in fp32 where the GPU has no unit for it."""
    try:
        compute_peak(catalog_of(job).gpu(job.gpu), parse_precision(precision).math, "")
    except MissingPeakError:
        precision = "fp32"
    return job.replace(precision=precision, communication_dtype=None)


def only(measured: Sequence[MeasuredJob], precision: str, name: str) -> list[MeasuredJob]:
    """The jobs measured in one precision; `PredictorError` where there are none."""
    found = [each for each in measured if each.precision == precision]
    if not found:
        have = ", ".join(sorted({each.precision for each in measured})) or "none"
        raise PredictorError(f"{name}: no measured job ran in precision {precision!r}; measured ones: {have}")
    return found
