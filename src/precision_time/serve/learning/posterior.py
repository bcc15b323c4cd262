"""The posterior of the effects given outcomes, robust against outcomes that are far off.

Noise of an outcome and a job's own error have Student's t distributions. Each is a normal distribution whose variance
is divided by a weight; the weights and the conditional mean under them are found in turn, from weights of one on, a
fixed number of times. So the posterior is a function of the set of outcomes alone, whatever their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precision_time.serve.learning.effects import Array, Coded, Variances, prior_variance
from precision_time.serve.learning.facets import Facets

FREEDOM = 4.0
"""Degrees of freedom of both t distributions: chosen by replay."""
ROUNDS, SETTLED = 20, 1e-3
"""Times that the weights are found anew at most, and the change of a weight below which they are settled. More rounds
change no correction of a published row by more than 0.1 %."""
BROKEN = 0.02
"""Share of the outcomes that are taken to be of broken machines: assumed. Such a job takes one to six times as long,
all logarithms being equally likely."""
_SLOWEST = math.log(6.0)


@dataclass(frozen=True, slots=True)
class JobOutcomes:
    """The outcomes of one job: log(measured / predicted), and what is added to the variance of each by its age."""

    facets: Facets
    ratios: tuple[float, ...]
    aged: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What outcomes say about log(measured / predicted) of a job.

    mean       of the logarithm
    informed   share of the variance between jobs that the outcomes explain
    broken     probability that what is known of this very job came from a broken machine
    """

    mean: float
    informed: float
    broken: float = 0.0


class Posterior:
    """What the outcomes of a cluster say. Jobs are sorted by their key, so that sums have one order."""

    def __init__(self, jobs: Sequence[JobOutcomes], variances: Variances) -> None:
        self.variances, self._squares = variances, variances.squares
        self.jobs = sorted(jobs, key=lambda job: job.facets.job)
        self._places = {job.facets.job: place for place, job in enumerate(self.jobs)}
        self._coded = Coded([job.facets for job in self.jobs])
        if self.jobs:
            self._solve()

    def _solve(self) -> None:
        owner = np.array([i for i, job in enumerate(self.jobs) for _ in job.ratios])
        ratio = np.array([r for job in self.jobs for r in job.ratios])
        noise = self.variances.noise**2 + np.array([a for job in self.jobs for a in job.aged])
        count, own = len(self.jobs), self.variances.job**2
        between = self._coded.shared(self._squares)
        of_outcome, of_job = np.ones(len(ratio)), np.ones(count)
        for _ in range(ROUNDS):
            precision = np.bincount(owner, of_outcome / noise, count)
            middle = np.bincount(owner, of_outcome / noise * ratio, count) / precision
            covariance = between + np.diag(own / of_job + 1.0 / precision)
            pull = np.linalg.solve(covariance, middle)
            before = of_job, of_outcome
            of_job = _weight(own / of_job * pull, own)
            of_outcome = _weight(ratio - (middle - pull / precision)[owner], noise)
            if max(np.abs(of_job - before[0]).max(), np.abs(of_outcome - before[1]).max()) < SETTLED:
                break
        self._inverse, self._pull, self._middle = np.linalg.inv(covariance), pull, middle
        self._own = np.diag(covariance) - np.diag(between) - 1.0 / precision
        self._shared_means = between @ pull

    def predicted(self, facets: Facets) -> Predicted:
        """The conditional mean for a job, which may have outcomes of its own, and what is explained."""
        prior = prior_variance(facets, self._squares) + self.variances.job**2
        if not self.jobs:
            return Predicted(0.0, 0.0)
        with_these = self._coded.shared_with(facets, self._squares)
        place = self._places.get(facets.job)
        if place is None:
            explained = float(with_these @ self._inverse @ with_these)
            return Predicted(float(with_these @ self._pull), _share(explained, prior))
        own_variance = float(self._own[place])
        with_these[place] += own_variance
        explained = float(with_these @ self._inverse @ with_these)
        prior += own_variance - self.variances.job**2
        shared, own = float(self._shared_means[place]), float(self._own[place] * self._pull[place])
        broken = self._broken(place) if len(self.jobs[place].ratios) == 1 else 0.0
        return Predicted(shared + (1.0 - broken) * own, _share(explained, prior) * (1.0 - broken), broken)

    def _broken(self, place: int) -> float:
        """Probability that the only outcome of a job is of a broken machine."""
        off = float(self._middle[place] - self._shared_means[place])
        if not 0.0 < off < _SLOWEST:
            return 0.0
        scale = math.hypot(self.variances.job, self.variances.noise)
        usual = _student(off / scale) / scale
        return BROKEN / _SLOWEST / (BROKEN / _SLOWEST + (1.0 - BROKEN) * usual)


def _weight(error: Array, variance: Array | float) -> Array:
    return np.asarray((FREEDOM + 1.0) / (FREEDOM + error**2 / variance))


def _share(explained: float, prior: float) -> float:
    return min(max(explained / prior, 0.0), 1.0) if prior > 0.0 else 0.0


def _student(deviation: float) -> float:
    """Density of Student's t distribution with `FREEDOM` degrees of freedom."""
    scale = math.gamma((FREEDOM + 1.0) / 2.0) / math.gamma(FREEDOM / 2.0) / math.sqrt(FREEDOM * math.pi)
    return scale * float((1.0 + deviation**2 / FREEDOM) ** (-(FREEDOM + 1.0) / 2.0))
