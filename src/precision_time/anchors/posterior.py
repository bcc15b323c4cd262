"""From measured jobs to the correction of another job: the conditional mean and variance of its log errors.

The logs of measured / predicted are normal with the covariance of `covariance.py`. Given the anchors' errors, the
conditional means of the log factors correct the program's times, and the conditional variance narrows the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
    factor_covariances,
    fading,
    self_variance,
    step_covariance,
)
from precision_time.bounded_cache import bounded
from precision_time.estimate.correction import INFORMED, NONE, AnchorUse, Correction
from precision_time.timing.scaled import Factors

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
    """Measured jobs, with the covariance between errors that turns them into corrections.

    `kept`: they correct many jobs, so what alike jobs share is remembered.
    """

    def __init__(self, anchors: Iterable[Anchor], covariance: Covariance, kept: bool = False) -> None:
        self.covariance, self._kept = covariance, kept
        self._by_family: dict[str, list[Anchor]] = {}
        for anchor in anchors:
            self._by_family.setdefault(anchor.job.family, []).append(anchor)
        self._solved: dict[tuple[str, str], _Solved] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_family.values()))

    def held_bytes(self) -> int:
        """Bytes of memory, with the two matrices of each family."""
        return sum(1000 * len(anchors) + 16 * len(anchors) ** 2 for anchors in self._by_family.values())

    def __iter__(self) -> Iterator[Anchor]:
        for anchors in self._by_family.values():
            yield from anchors

    def _solve(self, job: JobDescriptor) -> _Solved:
        """The anchors of the job's family that inform its framework, with their inverse covariance; computed once."""
        key = (job.family, job.framework)
        if key not in self._solved:
            anchors = [a for a in self._by_family.get(job.family, []) if not _loose(a, job)]
            jobs = JobColumns.of(anchors)
            noise = self.covariance.noise_of([a.trust for a in anchors])
            between = step_covariance(self.covariance, jobs, jobs) + np.diag(noise**2)
            residuals = np.array([a.residual for a in anchors])
            inverse = np.asarray(np.linalg.inv(between), dtype=np.float64)
            self._solved[key] = _Solved(self.covariance, anchors, jobs, between, inverse, residuals)
        return self._solved[key]

    def correction(
        self, job: JobDescriptor, step_s: Callable[[Factors], float], without: Sequence[str] = ()
    ) -> Correction:
        """The correction of a job by the anchors of its family.

        `step_s`: seconds of its step with the times of its program multiplied. Anchors that agree with the job in all
        fields of `without` are left out; ("key",) leaves out those of the same job.
        """
        if job.family not in self._by_family:
            return NONE
        solved = self._solve(job)
        if without:
            solved = solved.of([not _agree(a.job, job, without) for a in solved.anchors])
        if not solved.anchors:
            return NONE
        alike = _Alike(_COMPARED(job), job)
        find = _shared if self._kept and not without else _found
        shared = find(solved, alike)
        prior = self_variance(self.covariance, job.shares)
        factors = shared.factors
        # The last factor depends on the length of the step alone, and so slowly that it keeps the order of steps. It is
        # constant outside the anchors' lengths, so that micro-steps of a long accumulation cost the same.
        length = np.log2([step_s(factors) / factors.kernels])
        within = np.minimum(np.maximum(length, shared.shortest), shared.longest)
        known_lengths = solved.jobs.length
        of_length = shared.slowly * shared.length * fading(within, known_lengths)[0]
        factors = factors.times(math.exp(float(of_length @ shared.weights)))
        corrects = shared.environment + np.asarray(job.shares) @ shared.of_factor + of_length
        across = corrects - of_length + shared.length * fading(length, known_lengths)[0] + shared.gpus
        # the variance of log(true / corrected), where the correction leaves out some of what the anchors say
        remaining = min(max(prior - float(corrects @ solved.inverse @ (2.0 * across - corrects)), 0.0), prior)
        own_spread = self.covariance.noise["B"]  # of the same job, measured again
        correlation = across / np.sqrt(prior * np.diag(solved.between))
        nearest = np.argsort(-correlation, kind="stable")[:NEAREST].tolist()
        return Correction(
            factors=factors,
            log_spread=math.hypot(math.sqrt(remaining), own_spread),
            own_spread=own_spread,
            informed=1.0 - remaining / prior,
            count=len(solved.anchors),
            nearest=tuple(
                AnchorUse(anchor.id, anchor.source, anchor.measured_s, round(float(correlation[i]), 3))
                for i, anchor in ((i, solved.anchors[i]) for i in nearest)
            ),
        )


_COMPARED = attrgetter(*COMPARED, "gpus")


@dataclass(frozen=True, slots=True)
class _Alike:
    """A job as far as its covariances with anchors are concerned, apart from the length of its step: jobs with the same
    `fields` (those of `COMPARED` and the number of GPUs) are equal."""

    fields: tuple[Any, ...]
    job: JobDescriptor = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """What the corrections of alike jobs have in common.

    of_factor, environment, length, gpus   covariances with the anchors: of each factor (rows), and of the whole step by
                                           effect, `length` as between steps of one length
    weights                                of the anchors in a conditional mean
    factors                                the correction without the effect of the length
    shortest, longest                      log2 of the lengths between which its factor changes
    slowly                                 the share of its change that keeps the order of steps
    """

    of_factor: Array
    environment: Array
    length: Array
    gpus: Array
    weights: Array
    factors: Factors
    shortest: float
    longest: float
    slowly: float


def _found(solved: _Solved, alike: _Alike) -> _Shared:
    covariances = factor_covariances(solved.covariance, JobColumns([alike.job], [1.0]), solved.jobs)
    shared = {name: values[0] for name, values in covariances.items()}
    of_factor = [shared[name] * solved.jobs.shares[:, at] for at, name in enumerate(INFORMED)]
    weights = solved.inverse @ solved.residuals
    factors = Factors(*(math.exp(float((shared["environment"] + each) @ weights)) for each in of_factor))
    lengths = solved.jobs.length
    ends = lengths[shared["length"] > 0.0]
    fall = steepest_fall(shared["length"] * weights, lengths)
    return _Shared(
        of_factor=np.array(of_factor),
        environment=shared["environment"],
        length=shared["length"],
        gpus=shared["gpus"],
        weights=weights,
        factors=factors,
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


def _loose(anchor: Anchor, job: JobDescriptor) -> bool:
    """Whether the anchor is of the lowest trust and another framework, whose kernels can be twice as slow."""
    return anchor.trust == TRUSTS[-1] and anchor.job.framework != job.framework


def _agree(one: JobDescriptor, other: JobDescriptor, names: Sequence[str]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)
