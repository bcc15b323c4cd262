"""Covariance between the log errors of two jobs: a sum of shared effects, each weighted by the terms it acts on.

An effect on kernels is weighted by the product of both jobs' shares of kernels, since slower kernels do not slow a step
that waits for the host. No effect depends on batch, sizes or number of GPUs, except through the seconds of the step: a
factor that changed with these would let more work take less time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.estimate.correction import INFORMED

Array = NDArray[np.float64]

KERNEL_EFFECTS: dict[str, tuple[str, ...]] = {
    "model, framework": ("model", "framework"),
    "family, maths": ("family", "maths"),
    "family, architecture, maths": ("family", "arch", "maths"),
    "family, framework, maths": ("family", "framework", "maths"),
    "model, framework, architecture, maths, setting": ("model", "framework", "arch", "maths", "setting"),
}
"""Effect on kernels -> fields of the descriptor that must be equal in both jobs.

Chosen among a dozen sets by rows held out (2026-11-21): an effect of the model that other frameworks share makes
corrections worse where only another precision or GPU was measured (14.1 % instead of 12.3 %). Precisions that run on
one unit share all, which keeps their order; no framework published one family in two of them.
"""
OTHER_EFFECTS: dict[str, tuple[str, ...]] = {
    "host": ("family", "framework"),
    "communication": ("family",),
    "environment": ("family", "environment"),
    "length": ("model", "framework", "arch", "maths", "setting"),
    "gpus": ("family", "framework"),
}
"""The same for effects on the term of that name; the last three act on the whole step. `length` decays with the ratio
of the steps' lengths. `gpus` decays with that of the numbers of GPUs; it tells how errors agree and corrects none."""
EFFECTS = (*KERNEL_EFFECTS, *OTHER_EFFECTS)
WHOLE = ("environment", "length", "gpus")
TRUSTS = ("A", "B", "C")
FADING = 4.0
"""Factors of two over which an effect decays to 1/e: chosen."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """Standard deviations of log(measured / predicted): of each effect, and of a row's own error by trust."""

    effects: Mapping[str, float]
    noise: Mapping[str, float]

    def noise_of(self, trusts: Sequence[str]) -> Array:
        """Standard deviation of each row's own error; an unknown trust counts as the last."""
        return np.array([self.noise.get(trust, self.noise[TRUSTS[-1]]) for trust in trusts])


COMPARED = ("family", "model", "arch", "maths", "framework", "setting", "environment")
"""Fields of a descriptor that effects compare."""


class JobColumns:
    """The descriptors of several jobs as arrays, with the seconds of their steps as predicted without correction."""

    def __init__(self, jobs: Sequence[JobDescriptor], seconds: Sequence[float]) -> None:
        # hashes instead of texts: compared a hundred at a time in every prediction
        self.ids = {name: np.array([hash(getattr(job, name)) for job in jobs], dtype=np.int64) for name in COMPARED}
        self.shares = np.array([job.shares for job in jobs], dtype=np.float64).reshape(len(jobs), len(INFORMED))
        self.length = np.log2(np.asarray(seconds, dtype=np.float64))
        self.gpus = np.log2([max(job.gpus, 1) for job in jobs])

    @classmethod
    def of(cls, anchors: Sequence[Anchor]) -> JobColumns:
        return cls([anchor.job for anchor in anchors], [anchor.predicted_s for anchor in anchors])


def fading(one: Array, other: Array) -> Array:
    """Correlation between effects at distances in factors of two: e^(-distance / FADING)."""
    return np.asarray(np.exp(-np.abs(one[:, None] - other[None, :]) / FADING))


def shared_effects(one: JobColumns, other: JobColumns) -> dict[str, Array]:
    """Of every effect: correlation between each job of `one` (rows) and of `other` (columns), not weighted by terms;
    `length` as between steps of one length."""
    same = {name: one.ids[name][:, None] == other.ids[name][None, :] for name in one.ids}
    shared = {}
    for effect, names in {**KERNEL_EFFECTS, **OTHER_EFFECTS}.items():
        equal = functools.reduce(np.logical_and, [same[name] for name in names])
        shared[effect] = equal * (fading(one.gpus, other.gpus) if effect == "gpus" else 1.0)
    return shared


def factor_covariances(covariance: Covariance, one: JobColumns, other: JobColumns) -> dict[str, Array]:
    """Covariance between the log factors of the jobs of `one` and of `other`: of each field of `Factors`, and of the
    whole step by effect (`length` as between steps of one length)."""
    shared = shared_effects(one, other)
    covariances = {effect: covariance.effects[effect] ** 2 * shared[effect] for effect in EFFECTS}
    kernels = functools.reduce(np.add, [covariances[effect] for effect in KERNEL_EFFECTS])
    return {"kernels": kernels, **{name: covariances[name] for name in OTHER_EFFECTS}}


def effect_matrices(one: JobColumns, other: JobColumns) -> dict[str, Array]:
    """Of every effect: its part of the covariance between the steps' log(measured / predicted), at variance one."""
    matrices = {}
    for effect, shared in shared_effects(one, other).items():
        term = "kernels" if effect in KERNEL_EFFECTS else effect
        if term in INFORMED:
            at = INFORMED.index(term)
            shared = shared * np.outer(one.shares[:, at], other.shares[:, at])
        matrices[effect] = shared
    matrices["length"] = matrices["length"] * fading(one.length, other.length)
    return matrices


def step_covariance(covariance: Covariance, one: JobColumns, other: JobColumns) -> Array:
    """Covariance between log(measured / predicted) of the steps, without the rows' own errors."""
    total = np.zeros((len(one.gpus), len(other.gpus)))
    for effect, matrix in effect_matrices(one, other).items():
        total += covariance.effects[effect] ** 2 * matrix
    return total


def self_variance(covariance: Covariance, shares: Sequence[float]) -> float:
    """`step_covariance` of a job with itself, which shares every effect in full."""
    variance = {effect: covariance.effects[effect] ** 2 for effect in EFFECTS}
    total = sum(variance[effect] for effect in WHOLE)
    total += sum(variance[effect] for effect in KERNEL_EFFECTS) * shares[INFORMED.index("kernels")] ** 2
    return total + sum(variance[name] * shares[INFORMED.index(name)] ** 2 for name in INFORMED[1:])
