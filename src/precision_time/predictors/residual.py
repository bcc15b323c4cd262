"""Gradient boosting on top of the main line: trees for what the line leaves of log(measured seconds).

The line's step factors are fitted to the training rows first, as `Line.fit` does it; they are shrunk so much that the
rows they were fitted to err nearly as others do, and what they leave there is what the trees learn from. For a model
of a family that taught them nothing a share of their correction counts, chosen by leaving out families of the training
rows, from the trees and, to first order, from the line's factors. What is left there also says how wide an interval
must be for a new family. Rows on a calibrated device teach the line nothing, its kernels being measured: there it
stays as it ships.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.file import compact_json
from precision_time.job.job import Job
from precision_time.predictors.facts import facts_of
from precision_time.predictors.features import FEATURES, matrix
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.rows import Indices, Known, Radii, Rows, best_share, merged, out_of_fold
from precision_time.predictors.simulator import Line, read_json
from precision_time.predictors.trees import Setting, Trees, write

Array = NDArray[np.float64]

FILE = "residual.json"
INNER_FOLDS = 4


class BoostingResidual(Predictor):
    """`line`: a line already fitted to the very rows that `fit` will be given, where a caller has one."""

    name = "boosting-residual"

    def __init__(self, setting: Setting | None = None, seed: int = 0, line: Line | None = None) -> None:
        self.setting = setting or Setting()
        self.seed = seed
        self._fitted_line = line
        self.line = Line()
        self._trees: Trees | None = None
        self._share = 1.0
        self._radii = Radii(0.0, 0.0, 0.0)
        self._known = Known(*(frozenset[str](),) * 4)
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        start = time.perf_counter()
        self._trees = None
        rows = Rows.of(merged(measured), lambda job: job, self.name)
        self.line, self._fitted_line = self._fitted_line or Line(), None
        if self.line.constants is None and self.line.can_learn(measured):
            self.line.fit(measured)
        left = rows.log_s - np.log([self.line.step_seconds(each.job) for each in rows.measured])
        columns = matrix(rows.facts)

        def held_out(target: Array) -> Callable[[Indices, Indices], Array]:
            def judge(training: Indices, judged: Indices) -> Array:
                grown = self._grow(columns[training], target[training], rows.pick(training).weights)
                return grown.predict(columns[judged])

            return judge

        folds = rows.family_folds()
        moved = self.line.moved_without(folds.tolist())
        strange, left_strange = np.zeros(len(rows)), left.copy()
        for fold in np.unique(folds):
            judged, training = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
            found = left - moved.get(int(fold), 0.0)  # of a line that this fold did not teach
            left_strange[judged], strange[judged] = found[judged], held_out(found)(training, judged)
        self._share = best_share(left_strange, strange, rows.weights)
        self._radii = Radii.of(
            left - out_of_fold(rows.job_folds(INNER_FOLDS, self.seed), held_out(left)),
            left - out_of_fold(rows.card_folds(INNER_FOLDS, self.seed), held_out(left)),
            left_strange - self._share * strange,
            rows.families,
        )
        self._known = rows.known
        self._trees = self._grow(columns, left, rows.weights)
        self._cost = Cost(len(measured), sum(m.cost_s for m in measured), time.perf_counter() - start)

    def _grow(self, columns: Array, target: Array, weights: Array) -> Trees:
        return Trees.fit(FEATURES, columns, target, weights, self.setting, self.seed)

    def predict(self, job: Job) -> Forecast:
        facts = facts_of(job)
        learned = float(self.trees.predict(matrix([facts]))[0])
        if facts.family not in self._known.families:
            learned *= self._share
        seconds = self.line.step_seconds(job) * float(np.exp(learned)) * steps_of(job)
        kinship, notes = self._known.kinship(job, facts)
        wide = float(np.exp(getattr(self._radii, kinship)))
        return Forecast(seconds, seconds / wide, seconds * wide, notes=notes)

    @property
    def trees(self) -> Trees:
        if self._trees is None:
            raise PredictorError(f"{self.name} is not trained; call fit with measured jobs, or load a saved one")
        return self._trees

    def cost(self) -> Cost:
        return self._cost

    def save(self, folder: Path) -> None:
        content = {
            "predictor": self.name, "seed": self.seed, "setting": asdict(self.setting), "share": self._share,
            "radii": asdict(self._radii), "known": self._known.to_dict(), "cost": asdict(self._cost),
        }  # fmt: skip
        write(folder, {FILE: compact_json(content) + "\n", **self.trees.texts("residual")})
        self.line.save(folder)

    @classmethod
    def load(cls, folder: Path) -> BoostingResidual:
        content = read_json(folder, FILE, cls.name)
        found = cls(Setting(**content["setting"]), content["seed"])
        found.line = Line.load(folder)
        found._trees = Trees.read(folder, "residual", FEATURES, found.setting.seeds)
        found._share, found._radii = content["share"], Radii(**content["radii"])
        found._known = Known(**{name: frozenset(values) for name, values in content["known"].items()})
        found._cost = Cost(**content["cost"])
        return found
