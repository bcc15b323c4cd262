"""The simulator (`precision_time.predict`) as a predictor, and its precision-blind twin.

Without `fit` it returns what `predict` returns: shipped step factors, corrected by published anchors. `fit` fits the
step factors (`fit.factors`) to the given jobs, and no anchor corrects it from then on. It can therefore be judged on
rows that the shipped factors were fitted to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from precision_time.bounded_cache import bounded
from precision_time.errors import PredictorError
from precision_time.fit.cases import Case, case_of, is_data_parallel
from precision_time.fit.factors import Fitted, fit, left_out
from precision_time.job.job import Job
from precision_time.measurements.row import Row
from precision_time.prediction import predict
from precision_time.predictors.blind import Blind, PrecisionAware
from precision_time.predictors.facts import JobKey
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.rows import merged
from precision_time.reading import read_json
from precision_time.report.write import compact_json, make_folder, write_whole
from precision_time.timing.constants import StepConstants
from precision_time.timing.layout_costs import shipped_layout_costs

Array = NDArray[np.float64]

ROUNDS = 2
"""Gauss-Newton steps of a fit. The board takes up to six; held out by family, two predict the same to 0.1 % of MAPE."""
FILE = "simulator.json"
_PARTS = ("scales", "execution", "host", "ranks")


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """The result of a fit, its cases, and for each of the jobs that `fit` was given whether it is among them."""

    fit: Fitted
    cases: tuple[Case, ...]
    taught: tuple[bool, ...]


class Simulator(PrecisionAware, Predictor):
    """`precision_time.predict` under the interface of the published predictors.

    rounds  Gauss-Newton steps of a fit
    """

    name = "simulator"

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds = rounds
        self.constants: StepConstants | None = None
        self._fitted: _Fitted | None = None
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Fit the step factors to these jobs; jobs of other layouts than data parallelism are not used."""
        start = time.perf_counter()
        self.constants, self._fitted = None, None
        asked = merged(self._training_rows(measured))
        of_job = [_case(each, self._view(each.job)) for each in asked]
        taught = [case for case in of_job if case is not None]
        if not taught:
            raise PredictorError(
                f"simulator: none of the {len(measured)} measured jobs is plain data parallel, which its factors are "
                "fitted to; give such jobs, or leave fit out to use the shipped factors"
            )
        fitted = fit(taught, iterations=self.rounds)
        self._fitted = _Fitted(fitted, tuple(taught), tuple(case is not None for case in of_job))
        self.constants = replace(fitted.constants, layouts=shipped_layout_costs())
        self._cost = Cost(len(measured), sum(m.cost_s for m in measured), time.perf_counter() - start)

    def can_learn(self, measured: Sequence[MeasuredJob]) -> bool:
        """Whether any of the jobs can be fitted to. Jobs on a device file cannot: no factor moves measured kernels."""
        return any(_can_teach(self._view(each.job)) for each in measured)

    def moved_without(self, folds: Sequence[int]) -> dict[int, Array]:
        """Fold -> change of log(seconds) of every job that `fit` was given, if the fit had left that fold out.

        To first order (`fit.factors.left_out`). `folds` holds the fold of each job after `rows.merged`. Empty where
        nothing was fitted.
        """
        if self._fitted is None:
            return {}
        if len(folds) != len(self._fitted.taught):
            raise PredictorError(
                f"simulator was fitted to {len(self._fitted.taught)} jobs, not {len(folds)}; give a fold of each job"
            )
        at = np.flatnonzero(self._fitted.taught)
        folds_of = [int(folds[i]) for i in at.tolist()]
        moved = {}
        for fold, change in left_out(self._fitted.fit, self._fitted.cases, folds_of).items():
            moved[fold] = np.zeros(len(folds))
            moved[fold][at] = change
        return moved

    def predict(self, job: Job) -> Forecast:
        step = predict(self._view(job), constants=self.constants).step
        steps = steps_of(job)
        return Forecast(step.p50 * steps, step.p10 * steps, step.p90 * steps)

    def step_seconds(self, job: Job) -> float:
        """Seconds of one step alone, without memory, interval and breakdown."""
        seen = self._view(job)
        if self.constants is None and not seen.anchors:
            return _shipped_seconds(JobKey.of(seen))
        if self.constants is None:
            return float(predict(seen).step.p50)
        return _traced(JobKey.of(seen)).seconds(self.constants)

    def held_out(self) -> Mapping[str, float]:
        """Nothing: `benchmarks/results/accuracy.md` has the errors of the simulator."""
        return {}

    def cost(self) -> Cost:
        return self._cost

    def save(self, folder: Path) -> None:
        make_folder(folder, "folder", parents=True)
        constants = self.constants
        values = None if constants is None else {part: dict(getattr(constants, part)) for part in _PARTS}
        content = {"predictor": self.name, "constants": values, "cost": asdict(self._cost)}
        write_whole(folder / FILE, compact_json({**content, **self._settings()}) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        content = saved_json(folder, FILE, cls.name)
        predictor = cls._from(content)
        if content["constants"] is not None:
            predictor.constants = StepConstants(**content["constants"], layouts=shipped_layout_costs())
        predictor._cost = Cost(**content["cost"])
        return predictor

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "rounds": self.rounds}

    @classmethod
    def _arguments(cls, content: dict[str, Any]) -> dict[str, Any]:
        return {**super()._arguments(content), "rounds": content["rounds"]}


class BlindSimulator(Blind, Simulator):
    """Every job is timed in one precision, and its factors are of rows in it."""

    name = "simulator-blind"


# --- jobs as the fit of step factors takes them


@bounded()
def _traced(key: JobKey) -> Case:
    """The case of a data-parallel job, with a row that holds no measurement."""
    return case_of(_row("", key.job, math.nan, ""), key.job)


@bounded()
def _shipped_seconds(key: JobKey) -> float:
    return float(predict(key.job).step.p50)


def _can_teach(job: Job) -> bool:
    return not job.device and is_data_parallel(job)


def _case(measured: MeasuredJob, seen: Job) -> Case | None:
    """A measured job as a case of trust B (`MeasuredJob` has no grade); None where it cannot be fitted to."""
    if not _can_teach(seen):
        return None
    seconds = measured.seconds / steps_of(measured.job)
    return replace(_traced(JobKey.of(seen)), row=_row(measured.id, seen, seconds, measured.family))


def _row(name: str, job: Job, seconds: float, family: str) -> Row:
    return Row(
        id=name,
        source="",
        line=0,
        trust="B",
        framework=job.framework,
        model=job.model,
        family=family,
        gpu=job.gpu,
        precision=job.precision,
        gpus=job.gpus,
        measured_s=seconds,
        job=job,
        reason="",
        assumed=(),
        setting=(),
        digest="",
    )


def saved_json(folder: Path, file: str, name: str) -> dict[str, Any]:
    """What a predictor of that name wrote; `PredictorError` where it did not."""
    path = folder / file
    if not path.is_file():
        raise PredictorError(
            f"{str(folder)!r} holds no saved predictor {name!r} (no {file}); fit one and save it there"
        )
    content = read_json(path)
    if not isinstance(content, dict) or content.get("predictor") != name:
        raise PredictorError(
            f"{str(folder)!r} holds predictor {content.get('predictor')!r}, not {name!r}; load it by its own name"
        )
    return dict(content)
