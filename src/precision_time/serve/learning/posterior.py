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
    """The outcomes of one job on one release of its software (`facets.release`): log(measured / predicted), and what is
    added to the variance of each by its age."""

    facets: Facets
    ratios: tuple[float, ...]
    aged: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What outcomes say about log(measured / predicted) of a job.

    mean       of the logarithm
    informed   share of the variance between jobs that the outcomes explain
    prior      that variance
    broken     probability that what is known of this very job came from a broken machine
    """

    mean: float
    informed: float
    prior: float
    broken: float = 0.0


class Posterior:
    """What the outcomes of a cluster say. `groups` are sorted by job and release, so that sums have one order."""

    def __init__(self, groups: Sequence[JobOutcomes], variances: Variances) -> None:
        self.variances, self._squares = variances, variances.squares
        self.groups = sorted(groups, key=lambda group: (group.facets.job, group.facets.release))
        self._jobs: dict[str, int] = {}
        self._job_of = np.array([self._jobs.setdefault(g.facets.job, len(self._jobs)) for g in self.groups], np.int64)
        self._coded = Coded([group.facets for group in self.groups])
        if self.groups:
            self._solve()

    def _solve(self) -> None:
        owner = np.array([i for i, group in enumerate(self.groups) for _ in group.ratios])
        ratio = np.array([r for group in self.groups for r in group.ratios])
        noise = self.variances.noise**2 + np.array([a for group in self.groups for a in group.aged])
        count, own = len(self.groups), self.variances.job**2
        between = self._coded.shared(self._squares)
        same_job = self._job_of[:, None] == self._job_of[None, :]
        of_outcome, of_job = np.ones(len(ratio)), np.ones(len(self._jobs))
        for _ in range(ROUNDS):
            precision = np.bincount(owner, of_outcome / noise, count)
            middle = np.bincount(owner, of_outcome / noise * ratio, count) / precision
            covariance = between + same_job * (own / of_job)[self._job_of] + np.diag(1.0 / precision)
            pull = np.linalg.solve(covariance, middle)
            before = of_job, of_outcome
            of_job = _weight(own / of_job * np.bincount(self._job_of, pull, len(of_job)), own)
            of_outcome = _weight(ratio - (middle - pull / precision)[owner], noise)
            if max(np.abs(of_job - before[0]).max(), np.abs(of_outcome - before[1]).max()) < SETTLED:
                break
        self._inverse, self._pull, self._own = np.linalg.inv(covariance), pull, own / before[0]
        self._unshared = middle - between @ pull

    def predicted(self, facets: Facets) -> Predicted:
        """The conditional mean for a job, which may have outcomes of its own, and what is explained."""
        prior = prior_variance(facets, self._squares) + self.variances.job**2
        if not self.groups:
            return Predicted(0.0, 0.0, prior)
        with_these = self._coded.shared_with(facets, self._squares)
        shared, job = float(with_these @ self._pull), self._jobs.get(facets.job)
        if job is None:
            return Predicted(shared, _share(float(with_these @ self._inverse @ with_these), prior), prior)
        its, variance = self._job_of == job, float(self._own[job])
        with_these[its] += variance
        explained = float(with_these @ self._inverse @ with_these)
        broken = (
            self._broken(int(np.argmax(its)))
            if sum(len(self.groups[i].ratios) for i in np.flatnonzero(its)) == 1
            else 0.0
        )
        mean = shared + (1.0 - broken) * variance * float(self._pull[its].sum())
        prior += variance - self.variances.job**2
        return Predicted(mean, _share(explained, prior) * (1.0 - broken), prior, broken)

    def _broken(self, group: int) -> float:
        """Probability that the only outcome of a job is of a broken machine."""
        off = float(self._unshared[group])
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
