"""From measured jobs to the correction of another job: the conditional mean and variance of its log errors.

The logs of measured / predicted are normal with the covariance of `covariance.py`. Given the anchors' errors, the
conditional means of the log factors correct the program's times, and the conditional variance narrows the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.anchors.covariance import (
    COMPARED,
    FADING,
    TRUSTS,
    Array,
    Covariance,
    JobColumns,
    environment_covariance,
    factor_covariances,
    fading,
    self_variance,
    step_covariance,
)
from precision_time.bounded_cache import bounded
from precision_time.estimate.correction import INFORMED, NONE, AnchorUse, Correction
from precision_time.timing.scaled import UNCHANGED, Factors

NEAREST = 3
"""Anchors that a correction names."""
STEEPEST = 0.9
"""Largest fall of a log factor against the log of the step's length. Below one a longer step stays the longer one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """Anchors, their descriptors as arrays, the covariance between their residuals (of effects: `covariance`), its
    inverse, and the residuals."""

    covariance: Covariance
    anchors: Sequence[Anchor]
    jobs: JobColumns
    between: Array
    inverse: Array
    residuals: Array

    def of(self, chosen: Sequence[bool]) -> _Solved:
        """Some of the anchors."""
        if all(chosen):
            return self
        use = np.flatnonzero(chosen)
        anchors, between = [self.anchors[i] for i in use.tolist()], self.between[np.ix_(use, use)]
        inverse = np.asarray(np.linalg.inv(between), dtype=np.float64)
        return _Solved(self.covariance, anchors, JobColumns.of(anchors), between, inverse, self.residuals[use])


class Anchors:
    """Measured jobs by family and framework, with the covariance between errors that turns them into corrections.

    `kept`: they correct many jobs, so what alike jobs share is remembered.
    """

    def __init__(self, anchors: Iterable[Anchor], covariance: Covariance, kept: bool = False) -> None:
        self.covariance, self._kept = covariance, kept
        self._by_kind: dict[tuple[str, str], list[Anchor]] = {}
        for anchor in anchors:
            self._by_kind.setdefault((anchor.job.family, anchor.job.framework), []).append(anchor)
        self._solved: dict[tuple[str, str], _Solved] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_kind.values()))

    def held_bytes(self) -> int:
        """Bytes of memory, with the two matrices of each family."""
        return sum(1000 * len(anchors) + 16 * len(anchors) ** 2 for anchors in self._by_kind.values())

    def __iter__(self) -> Iterator[Anchor]:
        for anchors in self._by_kind.values():
            yield from anchors

    def _solve(self, kind: tuple[str, str]) -> _Solved:
        """The anchors of a family in a framework, with their inverse covariance; computed once.

        Rows of trust C correct only where there are no better ones.
        """
        if kind not in self._solved:
            every = self._by_kind[kind]
            anchors = [each for each in every if each.trust != TRUSTS[-1]] or every
            jobs, covariance = JobColumns.of(anchors), self._covariance_of(anchors)
            noise = covariance.noise_of([a.trust for a in anchors])
            between = step_covariance(covariance, jobs, jobs) + np.diag(noise**2)
            residuals = np.array([a.residual for a in anchors])
            inverse = np.asarray(np.linalg.inv(between), dtype=np.float64)
            self._solved[kind] = _Solved(covariance, anchors, jobs, between, inverse, residuals)
        return self._solved[kind]

    def _covariance_of(self, anchors: Iterable[Anchor]) -> Covariance:
        """With an environment as large as the largest residual of the user's own jobs, the likeliest size where one of
        them lies further off than published rows do."""
        if not self.covariance.environment:
            return self.covariance
        largest = max((abs(anchor.residual) for anchor in anchors if anchor.own), default=0.0)
        return replace(self.covariance, environment=max(self.covariance.environment, largest))

    def correction(
        self, job: JobDescriptor, step_s: Callable[[Factors], float], without: Sequence[str] = ()
    ) -> Correction:
        """The correction of a job by the anchors of its family and framework; `NONE` where none shares an effect.

        `step_s`: seconds of its step with the times of its program multiplied.
        Anchors that agree with the job in all fields of `without` are left out; ("key",) leaves out those of the same
        job.
        """
        kind = (job.family, job.framework)
        if kind not in self._by_kind:
            return NONE
        solved = self._solve(kind)
        if without:
            solved = solved.of([not _agree(a.job, job, without) for a in solved.anchors])
            if not solved.anchors:
                return NONE
        alike = _Alike(_COMPARED(job), job)
        find = _shared if self._kept and not without else _found
        shared = find(solved, alike)
        of_kernels = np.asarray(job.shares) @ shared.of_factor
        # The last factor depends on the length of the step alone, and so slowly that it keeps the order of steps. It is
        # constant outside the anchors' lengths, so that micro-steps of a long accumulation cost the same.
        corrected_s = step_s(shared.factors)
        length = np.log2([corrected_s / shared.factors.kernels])
        within, known_lengths = np.clip(length, shared.shortest, shared.longest), solved.jobs.length
        faded = fading(length, known_lengths)[0]
        slowly = faded if within[0] == length[0] else fading(within, known_lengths)[0]
        of_length = shared.slowly * shared.length * slowly
        corrects, across = of_kernels + of_length, of_kernels + shared.length * faded
        sharing = across
        if not across.any():
            sharing = _of_hidden_terms(shared, corrected_s, step_s)
            if not sharing.any():
                return NONE
        # of the environment what the job shares with the nearest of the user's, so that one far off widens little
        environment = float((shared.environment * faded).max())
        prior = self_variance(self.covariance, job.shares) + environment
        # the share of the variance that the correction takes away, where it leaves out some of what the anchors say
        informed = min(max(float(corrects @ solved.inverse @ (2.0 * across - corrects)) / prior, 0.0), 1.0)
        correlation = across / np.sqrt(prior * np.diag(solved.between))
        nearest = np.argsort(-correlation if across.any() else -sharing, kind="stable")[:NEAREST].tolist()
        return Correction(
            factors=shared.factors.times(math.exp(float(of_length @ shared.weights))),
            own_spread=self.covariance.own_spread,
            informed=informed,
            count=int(np.count_nonzero(sharing)),
            nearest=tuple(
                AnchorUse(anchor.id, anchor.source, anchor.measured_s, round(float(correlation[i]), 3))
                for i, anchor in ((i, solved.anchors[i]) for i in nearest)
                if sharing[i]
            ),
        )


_COMPARED = attrgetter(*COMPARED)


@dataclass(frozen=True, slots=True)
class _Alike:
    """A job as far as its covariances with anchors go: jobs with the same `fields` (`COMPARED`) are equal."""

    fields: tuple[Any, ...]
    job: JobDescriptor = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """What the corrections of alike jobs have in common.

    of_factor          covariances of each factor (rows) with the anchors
    length             the same of the whole step by length and environment, as between steps of one length
    environment        variance of the environment, for each of the user's jobs of this configuration
    weights            of the anchors in a conditional mean
    factors            the correction without the effect of the length
    shortest, longest  log2 of the lengths between which its factor changes
    slowly             the share of its change that keeps the order of steps
    """

    of_factor: Array
    length: Array
    environment: Array
    weights: Array
    factors: Factors
    shortest: float
    longest: float
    slowly: float


def _found(solved: _Solved, alike: _Alike) -> _Shared:
    # the job is the user's
    job = JobColumns([alike.job], [1.0], [True])
    covariances = factor_covariances(solved.covariance, job, solved.jobs)
    of_factor = np.array([covariances[name][0] * solved.jobs.shares[:, at] for at, name in enumerate(INFORMED)])
    weights = solved.inverse @ solved.residuals
    shared, lengths = covariances["length"][0], solved.jobs.length
    ends = lengths[shared > 0.0]
    fall = steepest_fall(shared * weights, lengths)
    return _Shared(
        of_factor=of_factor,
        length=shared,
        environment=environment_covariance(solved.covariance, job, solved.jobs)[0],
        weights=weights,
        factors=Factors(*np.exp(of_factor @ weights).tolist()),
        shortest=float(ends.min()) if len(ends) else -math.inf,
        longest=float(ends.max()) if len(ends) else math.inf,
        slowly=min(1.0, STEEPEST / max(-fall, STEEPEST)),
    )


_shared = bounded()(_found)
"""By the anchors of a family, and what is compared of a job."""


def steepest_fall(weights: Array, length: Array) -> float:
    """The least slope, over ln(length), of the sum of `weights` that fade from their lengths (log2) on.

    It is at one of these, on either side: in between, the sum bends away from zero.
    """
    apart = length[:, None] - length[None, :]
    faded = np.exp(-np.abs(apart) / FADING) * weights / (FADING * math.log(2.0))
    slopes = -(np.sign(apart) * faded).sum(axis=1)
    at_once = (faded * (apart == 0.0)).sum(axis=1)
    return float(np.min(slopes - np.abs(at_once)))


def _of_hidden_terms(shared: _Shared, corrected_s: float, step_s: Callable[[Factors], float]) -> Array:
    """Covariances with the anchors of the factors that lengthen a step by terms it has no share of.

    Time of the host that kernels hide is no part of the step, and becomes one where the anchors' host was slower.
    """
    usual_s = step_s(UNCHANGED)
    if corrected_s == usual_s:
        return np.zeros_like(shared.length)
    alone = [step_s(UNCHANGED._replace(**{name: getattr(shared.factors, name)})) for name in INFORMED]
    moves = np.array([seconds != usual_s for seconds in alone])
    return np.asarray((moves if moves.any() else ~moves) @ shared.of_factor)


def _agree(one: JobDescriptor, other: JobDescriptor, names: Sequence[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)
