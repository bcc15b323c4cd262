"""Chooses the effects that similar jobs share, so that one which does not help judged rows has no variance.

Rows of a model family are corrected by the others of the family and framework that do not share their job, model, GPU
or precision, and by one row alone. An effect keeps the standard deviation of `GRID` with the smallest errors over
all of these, and none where less than `WORTH` of the errors depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from precision_time.anchors.anchor import Anchor
from precision_time.anchors.covariance import EFFECTS, Array, Covariance, JobColumns, effect_matrices
from precision_time.fit.folds import TRUSTED, least_spread

NOISE = {"A": 0.03, "B": 0.04, "C": 0.075}
"""Standard deviation of a row's own error by trust: chosen. The effects are fitted relative to it."""
GRID = (0.0, 0.035, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3)
STARTS: tuple[Mapping[str, float], ...] = (
    {"family in a configuration": 0.1, "model, maths": 0.07, "host": 0.2, "length": 0.05},
    {"model": 0.05, "host": 0.2, "communication": 0.2, "length": 0.1},
)
"""Where searches begin, of which the best is taken: one effect at a time, each ends where it began near. The scale of
all effects together hardly changes a correction."""
SWEEPS = 3
WORTH = 0.004
"""Share of the errors that an effect must remove to have a variance: chosen."""
TOLERATED = 0.003
HARM = 8.0
"""Growth of a family's mean error above the first counts so many times more: chosen, since no family may lose."""

KNOWN, NEW = "published rows, known to the factors", "rows of a family that is new to the factors"
SEEN, FAMILY = "", "family"
"""Keys of `Evidence.residuals`: by factors that have seen the row, and by factors fitted without its family."""
LEFT_OUT: dict[str, str] = {
    "the job itself": "key",
    "its model": "model",
    "its GPU": "gpu",
    "its precision": "precision",
}
"""What no anchor of a judged row may share with it -> field of the descriptor. Without its framework it has none."""
ONE_ROW: dict[str, tuple[tuple[str, ...], str]] = {
    "at another batch or count": (("model", "gpu", "precision"), "key"),
    "in another precision": (("model", "gpu"), "precision"),
    "on another GPU": (("model", "precision"), "gpu"),
}
"""How the only anchor differs from the judged row -> fields in which they agree, and the one in which they do not."""


Kind = tuple[str, str]
"""Family and framework."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A measured row as an anchor of others, and its errors.

    residuals   log(measured / predicted) by factors fitted without the rows that share a field with it (`SEEN`: with
                all rows, as they ship); a field is missing where the factors say nothing of the row
    spreads     standard deviation of log(step time) in the same cases, without anchors
    """

    anchor: Anchor
    residuals: Mapping[str, float]
    spreads: Mapping[str, float]

    @property
    def trusted(self) -> bool:
        return self.anchor.trust in TRUSTED

    @property
    def family(self) -> str:
        return self.anchor.job.family

    @property
    def kind(self) -> Kind:
        """Rows of one kind may correct each other."""
        return self.anchor.job.family, self.anchor.job.framework

    def errors(self, regime: str, left_out: str) -> tuple[float, float, float]:
        """Residuals of the row as an anchor and as a judged row, and the spread of the latter; NaN where unknown."""
        anchor, judged = (FAMILY, FAMILY) if regime == NEW else (SEEN, SEEN if left_out == "key" else left_out)
        known = self.residuals.get
        return known(anchor, math.nan), known(judged, math.nan), self.spreads.get(judged, math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Judged rows (`row` in their family) before and after a correction: log errors, spreads, share explained.

    A row that several anchors correct one at a time appears once for each.
    """

    row: NDArray[np.intp]
    before: Array
    after: Array
    spread: Array
    informed: Array

    def mean(self, values: Array) -> float:
        """The mean over rows of absolute values, of which a row may have several."""
        times = np.bincount(self.row)[self.row]
        return float(np.sum(np.abs(values) / times) / len(np.unique(self.row)))


@dataclass(frozen=True, slots=True, eq=False)
class _Situation:
    """Residuals of a family's rows as anchors and as judged rows, the spreads of the latter, and who corrects whom.

    groups  (judged rows, rows that correct them), all of them together; `jobs`: the judged rows are those of one job
            and all other rows correct them, by the same residuals
    pairs   (judged row, row that corrects it) one at a time
    """

    anchor: Array
    judged: Array
    spread: Array
    jobs: bool = False
    groups: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]] = ()
    pairs: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None


class KindRows:
    """The rows of trust A and B of one family and framework, with the covariance that every effect adds."""

    def __init__(self, rows: Sequence[Evidence]) -> None:
        jobs = JobColumns.of([row.anchor for row in rows])
        matrices = effect_matrices(jobs, jobs)
        self.matrices = {effect: matrices[effect] for effect in EFFECTS}
        self.noise = np.array([NOISE.get(row.anchor.trust, NOISE["C"]) ** 2 for row in rows])
        self.situations: dict[tuple[str, str], _Situation] = {}
        for regime in (KNOWN, NEW):
            for name, field in LEFT_OUT.items():
                self._add(regime, name, _by_others(rows, regime, field))
            for name, (equal, other) in ONE_ROW.items():
                self._add(regime, name, _by_one(rows, regime, equal, other))

    def _add(self, regime: str, name: str, situation: _Situation) -> None:
        if situation.groups or (situation.pairs is not None and len(situation.pairs[0])):
            self.situations[regime, name] = situation

    def covariance(self, effects: Mapping[str, float]) -> Array:
        total = np.zeros((len(self.noise), len(self.noise)))
        for effect, size in effects.items():
            if size:
                total += size**2 * self.matrices[effect]
        return total

    def judged(self, effects: Mapping[str, float]) -> dict[tuple[str, str], Judged]:
        """The judged rows of every regime and situation that the family has."""
        between = self.covariance(effects)
        return {place: self._judged(between, situation) for place, situation in self.situations.items()}

    def _judged(self, between: Array, of: _Situation) -> Judged:
        if of.pairs is not None:
            row, by = of.pairs
            weight = between[row, by] / (between[by, by] + self.noise[by])
            explained = weight * between[row, by] / np.maximum(between[row, row], 1e-12)
            return Judged(row, of.judged[row], of.judged[row] - weight * of.anchor[by], of.spread[row], explained)
        if of.jobs:
            return self._by_other_jobs(between, of)
        row = np.concatenate([rows for rows, _ in of.groups])
        after, explained = [], []
        for rows, known in of.groups:
            across = between[np.ix_(rows, known)]
            inverse = np.linalg.inv(between[np.ix_(known, known)] + np.diag(self.noise[known]))
            after.append(of.judged[rows] - across @ (inverse @ of.anchor[known]))
            explained.append(((across @ inverse) * across).sum(axis=1))
        share = np.concatenate(explained) / np.maximum(between[row, row], 1e-12)
        return Judged(row, of.judged[row], np.concatenate(after), of.spread[row], share)

    def _by_other_jobs(self, between: Array, of: _Situation) -> Judged:
        """As for any normal variables, the block of a job in the inverse covariance of all rows has the inverse of the
        covariance given the others, so that one inverse serves all jobs."""
        row = np.concatenate([rows for rows, _ in of.groups])
        place = np.zeros(len(between), dtype=np.intp)
        place[row] = np.arange(len(row))
        inverse = np.linalg.inv(between[np.ix_(row, row)] + np.diag(self.noise[row]))
        pulled = inverse @ of.anchor[row]
        after, left = np.zeros(len(row)), np.zeros(len(row))
        for rows, _ in of.groups:
            at = place[rows]
            given = np.linalg.inv(inverse[np.ix_(at, at)])
            after[at], left[at] = given @ pulled[at], np.diag(given)
        share = 1.0 - (left - self.noise[row]) / np.maximum(between[row, row], 1e-12)
        return Judged(row, of.anchor[row], after, of.spread[row], share)


def _by_others(rows: Sequence[Evidence], regime: str, field: str) -> _Situation:
    """The rows corrected by all others that differ in `field`."""
    anchor, judged, spread = np.array([row.errors(regime, field) for row in rows]).T
    values = np.array([getattr(row.anchor.job, field) for row in rows])
    groups = []
    for value in np.unique(values):
        of = np.flatnonzero((values == value) & ~np.isnan(judged))
        known = np.flatnonzero((values != value) & ~np.isnan(anchor))
        if len(of) and len(known):
            groups.append((of, known))
    return _Situation(anchor, judged, spread, field == "key", groups)


def _by_one(rows: Sequence[Evidence], regime: str, equal: Sequence[str], other: str) -> _Situation:
    """The rows, each corrected by one other row at a time that agrees in `equal` and differs in `other`."""
    anchor, judged, spread = np.array([row.errors(regime, "key") for row in rows]).T

    def same(name: str) -> NDArray[np.bool_]:
        values = np.array([getattr(row.anchor.job, name) for row in rows])
        return np.asarray(values[:, None] == values[None, :])

    chosen = ~same(other) & ~np.isnan(judged)[:, None] & ~np.isnan(anchor)[None, :]
    for name in equal:
        chosen &= same(name)
    row, by = np.nonzero(chosen)
    return _Situation(anchor, judged, spread, pairs=(row, by))


class Choice:
    """Fits covariances to the rows of several families; what a family's errors are is computed once per covariance."""

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        by_kind: dict[Kind, list[Evidence]] = {}
        for row in evidence:
            if row.trusted:
                by_kind.setdefault(row.kind, []).append(row)
        self.rows = dict(sorted(by_kind.items()))
        self.kinds = {kind: KindRows(rows) for kind, rows in self.rows.items()}
        self._errors: dict[tuple[Kind, tuple[float, ...]], dict[tuple[str, str], tuple[float, float, int]]] = {}

    def covariance(self, without: str | None = None) -> Covariance:
        """The covariance fitted to all families but one; the first start where none has a row that others correct."""
        kinds = [kind for kind in self.kinds if kind[0] != without]
        if any(self.kinds[kind].situations for kind in kinds):
            effects = min((self._search(kinds, start) for start in STARTS), key=partial(self._cost, kinds))
        else:
            effects = {effect: STARTS[0].get(effect, 0.0) for effect in EFFECTS}
        return Covariance(effects, NOISE, round(self._own_spread(kinds, effects), 4))

    def _cost(self, kinds: Sequence[Kind], effects: Mapping[str, float]) -> float:
        """The loss and what every effect must be worth."""
        return self._loss(kinds, effects) + WORTH * sum(1 for size in effects.values() if size)

    def _search(self, kinds: Sequence[Kind], start: Mapping[str, float]) -> dict[str, float]:
        """Where a search for the effects ends, one effect after another."""
        effects = {effect: start.get(effect, 0.0) for effect in EFFECTS}
        for _ in range(SWEEPS):
            before = dict(effects)
            for effect in EFFECTS:
                losses = {size: self._loss(kinds, {**effects, effect: size}) for size in GRID}
                best = min(losses, key=lambda size: losses[size])
                effects[effect] = best if losses[best] < losses[0.0] - WORTH else 0.0
            if effects == before:
                break
        return effects

    def _loss(self, kinds: Sequence[Kind], effects: Mapping[str, float]) -> float:
        """Mean over situations of the log of the mean |log error|, so that each counts in proportion.

        Growth of a family's error counts more (`HARM`). The weight of a family is the root of its rows.
        """
        sums: dict[tuple[str, str], list[float]] = {}
        for kind in kinds:
            for situation, (before, after, count) in self._errors_of(kind, effects).items():
                weight = math.sqrt(count)
                into = sums.setdefault(situation, [0.0, 0.0])
                into[0] += weight * (after + HARM * max(0.0, after - before - TOLERATED))
                into[1] += weight
        return float(np.mean([math.log(total / weight) for total, weight in sums.values()])) if sums else math.nan

    def _errors_of(self, kind: Kind, effects: Mapping[str, float]) -> dict[tuple[str, str], tuple[float, float, int]]:
        key = (kind, tuple(effects.values()))
        if key not in self._errors:
            self._errors[key] = {
                place: (j.mean(j.before), j.mean(j.after), len(np.unique(j.row)))
                for place, j in self.kinds[kind].judged(effects).items()
            }
        return self._errors[key]

    def _own_spread(self, kinds: Sequence[Kind], effects: Mapping[str, float]) -> float:
        """What P10-P90 needs besides the unexplained share of a spread to hold 80 % of the rows whose model was
        measured in the same precision on the same GPU."""
        close = ("the job itself", "at another batch or count")
        errors, known, weights = [], [], []
        for kind in kinds:
            for (_, name), j in self.kinds[kind].judged(effects).items():
                if name in close:
                    errors.append(j.after)
                    known.append(j.spread * np.sqrt(np.clip(1.0 - j.informed, 0.0, 1.0)))
                    weights.append(1.0 / np.bincount(j.row)[j.row] / math.sqrt(len(np.unique(j.row))))
        if not errors:
            return NOISE["B"]
        return least_spread(np.concatenate(errors), np.concatenate(known), np.concatenate(weights))
