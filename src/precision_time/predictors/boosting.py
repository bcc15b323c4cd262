"""Precision-aware hierarchical gradient boosting: models of compute, of communication, and of their overlap.

    compute        trees for log(seconds / initial), initial being the longer of kernels and launches
    communication  trees for log(1 + communication / compute)
    aggregator     trees on out-of-fold outputs of both, for the residual of their sum by precision and overlap

Rows of one GPU contain compute alone. The target of communication is the time of rows of several GPUs beyond the
compute predicted for them out of fold. It is then subtracted from those rows, and compute is fitted again to all rows.
The folds of this inner cross-validation keep a job with all its precisions and batches in one fold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError
from precision_time.job.job import Job
from precision_time.predictors.blind import Blind, PrecisionAware
from precision_time.predictors.facts import Facts, facts_of
from precision_time.predictors.features import COMMUNICATION, COMPUTE, OVERLAP, Feature, matrix
from precision_time.predictors.interface import Cost, Forecast, MeasuredJob, Predictor, steps_of
from precision_time.predictors.rows import Indices, Known, Radii, Rows, mean_error, merged, out_of_fold
from precision_time.predictors.simulator import saved_json
from precision_time.predictors.trees import Setting, Trees, write
from precision_time.report.write import compact_json

Array = NDArray[np.float64]

INNER_FOLDS = 4
FEWEST_OF_ONE_GPU = 30
"""With fewer rows of one GPU compute is first fitted to all rows, as if all communication were hidden."""
FEWEST_OF_SEVERAL = 8
SMALL_LEAVES, SMALL_ROUNDS = 4, 100
"""Trees of communication and aggregator are smaller: they have fewer rows and explain less of the time."""
FILE = "boosting.json"
_ADDED = Feature("communication", "1", 1, "predicted communication over predicted compute", lambda facts: 0.0)
AGGREGATED = (_ADDED, *OVERLAP)


@dataclass(frozen=True, eq=False)
class Compute:
    """The base predictor for compute."""

    trees: Trees

    @classmethod
    def fit(cls, rows: Rows, log_s: Array, setting: Setting, seed: int) -> Compute:
        left = log_s - _log_initial(rows.facts)
        return cls(Trees.fit(COMPUTE, matrix(rows.facts, COMPUTE), left, rows.weights, setting, seed))

    def log_seconds(self, facts: Sequence[Facts]) -> Array:
        return _log_initial(facts) + self.trees.predict(matrix(facts, COMPUTE))


@dataclass(frozen=True, eq=False)
class Communication:
    """The base predictor for communication."""

    trees: Trees

    @classmethod
    def fit(cls, rows: Rows, compute: Array, setting: Setting, seed: int) -> Communication:
        """`compute` is the predicted log seconds of compute alone."""
        columns = matrix(rows.facts, COMMUNICATION)
        return cls(Trees.fit(COMMUNICATION, columns, rows.log_s - compute, rows.weights, setting, seed))

    def log_factor(self, facts: Sequence[Facts]) -> Array:
        """log(1 + communication over compute), never below 0; 0 for one rank."""
        several = np.array([each.ranks > 1 for each in facts])
        return np.where(several, np.maximum(self.trees.predict(matrix(facts, COMMUNICATION)), 0.0), 0.0)


@dataclass(frozen=True, eq=False)
class Aggregator:
    """Predicts the factor of overlap on the sum of compute and communication, for jobs of several ranks."""

    trees: Trees

    @classmethod
    def fit(cls, rows: Rows, compute: Array, added: Array, setting: Setting, seed: int) -> Aggregator:
        """`compute` and `added` are out-of-fold outputs of the two base predictors for these rows."""
        columns = _aggregated(rows.facts, added)
        return cls(Trees.fit(AGGREGATED, columns, rows.log_s - compute - added, rows.weights, setting, seed))

    def log_factor(self, facts: Sequence[Facts], added: Array) -> Array:
        several = np.array([each.ranks > 1 for each in facts])
        return np.where(several, self.trees.predict(_aggregated(facts, added)), 0.0)


def _aggregated(facts: Sequence[Facts], added: Array) -> Array:
    return np.column_stack([np.expm1(added), matrix(facts, OVERLAP)])


def _log_initial(facts: Sequence[Facts]) -> Array:
    return np.log([each.initial_s for each in facts])


@dataclass(frozen=True, eq=False)
class Learned:
    """The result of a fit: models, interval widths, and what is known from training.

    `held_out` are mean errors as shares, by what was left out.
    """

    compute: Compute
    radii: Radii
    known: Known
    held_out: Mapping[str, float]
    communication: Communication | None = None
    aggregator: Aggregator | None = None

    def log_parts(self, facts: Sequence[Facts]) -> tuple[Array, Array, Array]:
        """log seconds of compute; log factors of communication and of the aggregator."""
        compute = self.compute.log_seconds(facts)
        if self.communication is None or self.aggregator is None:
            return compute, np.zeros(len(facts)), np.zeros(len(facts))
        added = self.communication.log_factor(facts)
        return compute, added, self.aggregator.log_factor(facts, added)


class Boosting(PrecisionAware, Predictor):
    """The predictor. `progress(done, of)` is called as a fit goes on."""

    name = "boosting"

    def __init__(
        self, setting: Setting | None = None, seed: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.setting = setting or Setting()
        self.seed = seed
        self._progress = progress or (lambda done, of: None)
        self._learned: Learned | None = None
        self._cost = Cost(0, 0.0, 0.0)

    def fit(self, measured: Sequence[MeasuredJob]) -> None:
        """Raises `PredictorError` for too few jobs (`rows.FEWEST`)."""
        start = time.perf_counter()
        self._learned = None
        taught = self._training_rows(measured)
        rows = Rows.of(merged(taught), self._view, self.name)
        self._learned = self._learn(rows)
        self._cost = Cost(len(taught), sum(m.cost_s for m in taught), time.perf_counter() - start)

    def _learn(self, rows: Rows) -> Learned:
        several = rows.several
        if several.sum() < FEWEST_OF_SEVERAL:
            rows = rows.pick(np.flatnonzero(~several))
            compute = self._compute_out_of_fold(rows, rows.log_s, rows.job_folds(INNER_FOLDS, self.seed))
            return self._learned_of(rows, rows.log_s, rows.log_s - compute)
        folds = rows.job_folds(INNER_FOLDS, self.seed)
        alone = ~several
        if alone.sum() < FEWEST_OF_ONE_GPU or len(set(folds[alone])) < 2:
            alone = np.ones(len(rows), dtype=np.bool_)
        compute = self._compute_out_of_fold(rows, rows.log_s, folds, alone)
        self._progress(1, 4)
        target = rows.log_s - self._added_out_of_fold(rows, compute, folds)
        compute = self._compute_out_of_fold(rows, target, folds)
        added = self._added_out_of_fold(rows, compute, folds)
        self._progress(2, 4)
        at = np.flatnonzero(several)
        communication = Communication.fit(rows.pick(at), compute[at], self._small, self.seed)
        aggregator = Aggregator.fit(rows.pick(at), compute[at], added[at], self._small, self.seed)
        self._progress(3, 4)
        learned = self._learned_of(rows, target, rows.log_s - compute - added)
        return replace(learned, communication=communication, aggregator=aggregator)

    @property
    def _small(self) -> Setting:
        return replace(self.setting, leaves=SMALL_LEAVES, rounds=min(SMALL_ROUNDS, self.setting.rounds))

    def _added_out_of_fold(self, rows: Rows, compute: Array, folds: Indices) -> Array:
        """Log factor of communication of every row, by models fitted to the rows of several GPUs in other folds."""
        several = rows.several

        def held_out(training: Indices, judged: Indices) -> Array:
            training = training[several[training]]
            if not len(training):
                return np.zeros(len(judged))
            fitted = Communication.fit(rows.pick(training), compute[training], self._small, self.seed)
            return fitted.log_factor(rows.pick(judged).facts)

        return out_of_fold(folds, held_out)

    def _compute_out_of_fold(
        self, rows: Rows, target: Array, folds: Indices, usable: NDArray[np.bool_] | None = None
    ) -> Array:
        """log compute seconds of every row by models fitted to the `usable` rows of the other folds."""

        def held_out(training: Indices, judged: Indices) -> Array:
            training = training if usable is None else training[usable[training]]
            fitted = Compute.fit(rows.pick(training), target[training], self.setting, self.seed)
            return fitted.log_seconds(rows.pick(judged).facts)

        return out_of_fold(folds, held_out)

    def _learned_of(self, rows: Rows, target: Array, errors: Array) -> Learned:
        """The compute model of all rows and the interval widths.

        `target` is log seconds of compute, `errors` are those of held-out rows of other jobs.
        """
        new_family = self._compute_out_of_fold(rows, target, rows.family_folds())
        same_family = self._compute_out_of_fold(rows, target, rows.card_folds(INNER_FOLDS, self.seed))
        radii = Radii.of(errors, target - same_family, target - new_family, rows.families)
        final = Compute.fit(rows, target, self.setting, self.seed)
        self._progress(4, 4)
        held_out = {
            "job": mean_error(errors),
            "model on a GPU": mean_error(target - same_family),
            "family": mean_error(target - new_family),
        }
        return Learned(final, radii, rows.known, held_out)

    def predict(self, job: Job) -> Forecast:
        return self.predict_facts(job, facts_of(self._view(job)))

    def predict_facts(self, job: Job, facts: Facts) -> Forecast:
        """`predict` of a job whose facts are known."""
        learned = self.learned
        if facts.ranks > 1 and learned.communication is None:
            raise PredictorError(
                f"{self.name} was trained on jobs of one GPU, so it cannot predict gpus {facts.ranks}; "
                f"fit it on {FEWEST_OF_SEVERAL} jobs of several GPUs too, or set gpus to 1"
            )
        seconds = float(np.exp(sum(part[0] for part in learned.log_parts([facts])))) * steps_of(job)
        return learned.radii.forecast(seconds, *learned.known.familiarity(job, facts, self.aware))

    @property
    def learned(self) -> Learned:
        if self._learned is None:
            raise PredictorError(f"{self.name} is not trained; call fit with measured jobs, or load a saved one")
        return self._learned

    def explain(self, job: Job) -> dict[str, float]:
        """Seconds of a step: `compute`, `communication`, and the correction for `overlap` (of either sign)."""
        compute, added, overlap = (
            float(np.exp(part[0])) for part in self.learned.log_parts([facts_of(self._view(job))])
        )
        return {
            "compute": compute,
            "communication": compute * (added - 1.0),
            "overlap": compute * added * (overlap - 1.0),
        }

    def cost(self) -> Cost:
        return self._cost

    def held_out(self) -> Mapping[str, float]:
        return self.learned.held_out

    def save(self, folder: Path) -> None:
        learned = self.learned
        models = {"compute": learned.compute.trees}
        if learned.communication is not None and learned.aggregator is not None:
            models |= {"communication": learned.communication.trees, "aggregator": learned.aggregator.trees}
        content = {
            "predictor": self.name,
            "models": list(models),
            "cost": asdict(self._cost),
            "held_out": dict(learned.held_out),
            "radii": asdict(learned.radii),
            "known": learned.known.to_dict(),
            **self._settings(),
        }
        files = {FILE: compact_json(content) + "\n"}
        for name, trees in models.items():
            files |= trees.files(name)
        write(folder, files)

    @classmethod
    def load(cls, folder: Path) -> Self:
        content = saved_json(folder, FILE, cls.name)
        predictor = cls._from(content)
        count, models = predictor.setting.seeds, content["models"]
        compute = Compute(Trees.read(folder, "compute", COMPUTE, count))
        communication = aggregator = None
        if "communication" in models:
            communication = Communication(Trees.read(folder, "communication", COMMUNICATION, count))
            aggregator = Aggregator(Trees.read(folder, "aggregator", AGGREGATED, count))
        known = Known(**{name: frozenset(values) for name, values in content["known"].items()})
        radii = Radii(**content["radii"])
        predictor._learned = Learned(compute, radii, known, content["held_out"], communication, aggregator)
        predictor._cost = Cost(**content["cost"])
        return predictor

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "seed": self.seed, "setting": asdict(self.setting)}

    @classmethod
    def _arguments(cls, content: dict[str, Any]) -> dict[str, Any]:
        return {**super()._arguments(content), "seed": content["seed"], "setting": Setting(**content["setting"])}


class BlindBoosting(Blind, Boosting):
    """The precision-blind twin: the features of every job are those of one precision."""

    name = "boosting-blind"
