"""Gradient boosting on the simulator's residuals: trees predict log(measured seconds / simulated seconds).

The simulator's step factors are fitted to the training rows first (`Simulator.fit`). They are shrunk so strongly that
their errors on training rows are nearly those on other rows, so the trees learn from these residuals. For a model of
a family without training rows only a share of the trees' correction is applied. The share is chosen by leaving out
families of the training rows, both from the trees and, to first order, from the step factors. The residuals left
there also set the width of the interval for a new family. Rows on a calibrated device do not change the step factors,
because the kernels of that device are measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.facts import facts_of
from precision_time.predictors.features import FEATURES, matrix
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.rows import Indices, Known, Radii, Rows, best_share, mean_error, merged, out_of_fold
from precision_time.predictors.simulator import Simulator, saved_json
from precision_time.predictors.trees import Setting, Trees, write
from precision_time.report.write import compact_json

Array = NDArray[np.float64]

FILE = "residual.json"
INNER_FOLDS = 4


class BoostingResidual(Predictor):
    """`simulator` is one already fitted to the rows that `fit` will get; by default `fit` fits one."""

    name = "boosting-residual"

    def __init__(self, setting: Setting | None = None, seed: int = 0, simulator: Simulator | None = None) -> None:
        self.setting = setting or Setting()
        self.seed = seed
        self._fitted_simulator = simulator
        self.simulator = Simulator()
        self._trees: Trees | None = None
        self._share = 1.0
        self._radii = Radii(0.0, 0.0, 0.0)
        self._held_out: Mapping[str, float] = {}
        self._known = Known(*(frozenset[str](),) * 4)
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        start = time.perf_counter()
        self._trees = None
        rows = Rows.of(merged(measured), lambda job: job, self.name)
        self.simulator, self._fitted_simulator = self._fitted_simulator or Simulator(), None
        if self.simulator.constants is None and self.simulator.can_learn(measured):
            self.simulator.fit(measured)
        errors = rows.log_s - np.log([self.simulator.step_seconds(each.job) for each in rows.measured])
        columns = matrix(rows.facts)

        def held_out(target: Array) -> Callable[[Indices, Indices], Array]:
            def judge(training: Indices, judged: Indices) -> Array:
                grown = self._grow(columns[training], target[training], rows.pick(training).weights)
                return grown.predict(columns[judged])

            return judge

        folds = rows.family_folds()
        moved = self.simulator.moved_without(folds.tolist())
        family_learned, family_errors = np.zeros(len(rows)), errors.copy()
        for fold in np.unique(folds):
            judged, training = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            target = errors - moved.get(int(fold), 0.0)  # of a simulator fitted without this fold
            family_errors[judged], family_learned[judged] = target[judged], held_out(target)(training, judged)
        self._share = best_share(family_errors, family_learned, rows.weights)
        left = {
            "job": errors - out_of_fold(rows.job_folds(INNER_FOLDS, self.seed), held_out(errors)),
            "model on a GPU": errors - out_of_fold(rows.card_folds(INNER_FOLDS, self.seed), held_out(errors)),
            "family": family_errors - self._share * family_learned,
        }
        self._radii = Radii.of(left["job"], left["model on a GPU"], left["family"], rows.families)
        self._held_out = {name: mean_error(each) for name, each in left.items()}
        self._known = rows.known
        self._trees = self._grow(columns, errors, rows.weights)
        self._cost = Cost(len(measured), sum(m.cost_s for m in measured), time.perf_counter() - start)

    def _grow(self, columns: Array, target: Array, weights: Array) -> Trees:
        return Trees.fit(FEATURES, columns, target, weights, self.setting, self.seed)

    def predict(self, job: Job) -> Forecast:
        facts = facts_of(job)
        learned = float(self.trees.predict(matrix([facts]))[0])
        if facts.family not in self._known.families:
            learned *= self._share
        seconds = self.simulator.step_seconds(job) * float(np.exp(learned)) * steps_of(job)
        return self._radii.forecast(seconds, *self._known.familiarity(job, facts))

    @property
    def trees(self) -> Trees:
        if self._trees is None:
            raise PredictorError(f"{self.name} is not trained; call fit with measured jobs, or load a saved one")
        return self._trees

    def cost(self) -> Cost:
        return self._cost

    def held_out(self) -> Mapping[str, float]:
        return self._held_out

    def save(self, folder: Path) -> None:
        content = {
            "predictor": self.name,
            "seed": self.seed,
            "setting": asdict(self.setting),
            "share": self._share,
            "held_out": dict(self._held_out),
            "radii": asdict(self._radii),
            "known": self._known.to_dict(),
            "cost": asdict(self._cost),
        }
        write(folder, {FILE: compact_json(content) + "\n", **self.trees.files("residual")})
        self.simulator.save(folder)

    @classmethod
    def load(cls, folder: Path) -> BoostingResidual:
        content = saved_json(folder, FILE, cls.name)
        predictor = cls(Setting(**content["setting"]), content["seed"])
        predictor.simulator = Simulator.load(folder)
        predictor._trees = Trees.read(folder, "residual", FEATURES, predictor.setting.seeds)
        predictor._share, predictor._radii = content["share"], Radii(**content["radii"])
        predictor._known = Known(**{name: frozenset(values) for name, values in content["known"].items()})
        predictor._cost, predictor._held_out = Cost(**content["cost"]), content["held_out"]
        return predictor
