"""Training on the measured jobs of one dataset type."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.errors import PredictorError
from precision_time.predictors.interface import Forecast, MeasuredJob
from precision_time.predictors.predictddl.confidence import Likeness, likeness
from precision_time.predictors.predictddl.facts import Facts, facts_of
from precision_time.predictors.predictddl.features import GROUPS, SIZE, columns, matrix
from precision_time.predictors.predictddl.law import Law, fit_law
from precision_time.predictors.predictddl.network import Floats, Network
from precision_time.predictors.predictddl.regressors import SETTINGS, Fitted, Setting
from precision_time.predictors.predictddl.selection import choose, grouped_folds

LEAST_NETWORKS = 4
"""Fewest different networks to train on."""
LEAST_SPREAD = 0.02
STRANGER = 2.0
"""Factor on the spread for a network out of distribution: chosen, nothing is published."""


FAR = 4.0
"""Standard deviations beyond which a size is extrapolated; vectors are means over nodes and do not contain size."""


Embedder = Callable[[Network], Floats]
"""Network -> its vector."""


@dataclass(frozen=True, slots=True)
class Design:
    """Columns and regressors to use. `encoder` is "pretrained" or "random" (untrained)."""

    groups: tuple[str, ...] = GROUPS
    encoder: str = "pretrained"
    settings: tuple[Setting, ...] = SETTINGS
    seed: int = 0
    law: bool = True
    """Whether the regressor predicts log(seconds / law of work) instead of log(seconds)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A predictor of one dataset type. `errors` are the settings' mean |log error| on networks held out."""

    dataset: str
    names: tuple[str, ...]
    fitted: Fitted
    likeness: Likeness
    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    groups: tuple[str, ...]
    spread: float
    rows: int
    measured_s: float
    fit_s: float
    errors: tuple[tuple[str, float], ...]
    law: Law | None = None
    peaks: bool = True
    """Whether all training devices had peaks (catalog or device file); a predicted job's device then needs them too."""

    def forecast(self, facts: Facts, vector: Floats) -> Forecast:
        """Seconds of a job whose network has this vector."""
        row = columns(facts, vector, self.groups)
        log_seconds = float(self.fitted.predict(matrix([row], self.names))[0])
        if self.law is not None:
            log_seconds += float(self.law.log_seconds([facts])[0])
        seconds = math.exp(log_seconds)
        confidence = self.likeness.confidence(vector)
        notes: tuple[str, ...] = ()
        spread = self.spread
        if self.likeness.is_strange(vector):
            spread *= STRANGER
            near = self.networks[self.likeness.nearest(vector)]
            notes = (
                f"Out of distribution: the network is unlike all {len(self.networks)} trained on (nearest: {near}).",
            )
        if far := self._far(row):
            spread *= STRANGER
            notes = (*notes, f"Extrapolated: {far} lies far outside the networks trained on.")
        if facts.gpu not in self.gpus:
            notes = (*notes, f"No training run was on {facts.job.gpu}; its catalog figures stand for it.")
        return Forecast.spread(seconds, spread, confidence, notes)

    def _far(self, row: Mapping[str, float]) -> str:
        """Name of a size beyond `FAR` standard deviations of the training networks; "" where there is none."""
        for name, mean, deviation in zip(
            self.names, self.fitted.arrays["mean"], self.fitted.arrays["deviation"], strict=True
        ):
            if name.startswith(f"{SIZE}.") and abs(row.get(name, 0.0) - mean) > FAR * deviation:
                return name.removeprefix(f"{SIZE}.").replace("_", " ")
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A measured job with its facts."""

    measured: MeasuredJob
    facts: Facts


def described(measured: Sequence[MeasuredJob]) -> list[Row]:
    """Every job with its facts; traces networks that do not ship a graph."""
    return [Row(each, facts_of(each.job)) for each in measured]


def network_name(measured: MeasuredJob) -> str:
    """The model, of any size and configuration: what folds keep whole."""
    return measured.job.model


def train(rows: Sequence[Row], dataset: str, embed: Embedder, design: Design) -> Trained:
    """Select a regressor by folds over networks and fit it. Raises a `PredictorError` for too few networks."""
    start = time.perf_counter()
    names_of = [network_name(row.measured) for row in rows]
    if len(set(names_of)) < LEAST_NETWORKS:
        raise PredictorError(
            f"dataset type {dataset!r} has runs of {len(set(names_of))} networks, and an unseen one cannot be told "
            f"from fewer than {LEAST_NETWORKS}; measure more networks and give their runs as well (--real-runs FOLDER)"
        )
    vectors = [embed(row.facts.network) for row in rows]
    table = [columns(row.facts, vector, design.groups) for row, vector in zip(rows, vectors, strict=True)]
    names = tuple(sorted({name for row in table for name in row}))
    y = np.log([row.measured.seconds for row in rows])
    law = None
    if design.law:
        y = y - _unseen_law(rows, names_of, design.seed)
        law = fit_law([row.facts for row in rows], np.array([row.measured.seconds for row in rows]))
    choice = choose(matrix(table, names), y, names_of, settings=design.settings, seed=design.seed)
    unlike: dict[bytes, tuple[str, Floats]] = {}
    for name, vector in zip(names_of, vectors, strict=True):
        unlike.setdefault(vector.tobytes(), (name, vector))
    return Trained(
        dataset=dataset,
        names=names,
        fitted=choice.fitted,
        likeness=likeness(np.stack([vector for _, vector in unlike.values()])),
        networks=tuple(name for name, _ in unlike.values()),
        gpus=tuple(sorted({row.facts.gpu for row in rows})),
        groups=design.groups,
        spread=max(LEAST_SPREAD, float(np.sqrt(np.mean(choice.residuals**2)))),
        rows=len(rows),
        measured_s=sum(row.measured.cost_s for row in rows),
        fit_s=time.perf_counter() - start,
        errors=tuple((setting.label, error) for setting, error in choice.errors),
        law=law,
        peaks=all(row.facts.cluster is not None for row in rows),
    )


def _unseen_law(rows: Sequence[Row], networks: Sequence[str], seed: int) -> Floats:
    """Log seconds of every row by a law fitted without its network, so that residuals are those of new networks."""
    log_seconds = np.zeros(len(rows))
    for known, unseen in grouped_folds(networks, seed=seed + 1):
        seconds = np.array([rows[i].measured.seconds for i in known])
        log_seconds[unseen] = fit_law([rows[i].facts for i in known], seconds).log_seconds(
            [rows[i].facts for i in unseen]
        )
    return log_seconds
