"""Covariance between the log errors of two jobs of one family and framework.

It is a sum of shared effects, each weighted by the terms it acts on. Jobs of the user share their environment
(container, data loader, clocks) too, as far as their configuration is the same: more than published jobs of one
configuration share.

An effect on kernels is weighted by the product of both jobs' shares of kernels, since slower kernels do not slow a step
that waits for the host. No effect depends on batch, sizes or number of GPUs, except through the seconds of the step: a
factor that changed with these would let more work take less time. An effect without variance corrects nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precision_time.anchors.anchor import Anchor, JobDescriptor
from precision_time.estimate.correction import INFORMED

Array = NDArray[np.float64]

KERNEL_EFFECTS: dict[str, tuple[str, ...]] = {
    "family in a configuration": ("maths", "gpu", "setting"),
    "model in a configuration": ("model", "maths", "gpu", "setting"),
    "model, maths": ("model", "maths"),
    "model": ("model",),
    "family": (),
}
"""Effect on kernels -> fields of the descriptor that must be equal in both jobs, besides family and framework.

A fit gives no weight to those that do not help (`fit.anchor_choice`). On 2026-11-23 these were the effects that other
arithmetics share: an error in fp32 tells nothing of that in half precision (correlation 0.1) and little of that on
another GPU (0.4), where one at another batch tells nearly all (0.9). None is shared by frameworks, whose
kernels differ.
"""
OTHER_EFFECTS: dict[str, tuple[str, ...]] = {
    "host": ("model",),
    "communication": (),
    "length": ("model", "maths", "gpu", "setting"),
}
"""The same for effects on the term of that name; `length` acts on the whole step and decays with the ratio of the
lengths of the steps."""
EFFECTS = (*KERNEL_EFFECTS, *OTHER_EFFECTS)
TRUSTS = ("A", "B", "C")
FADING = 4.0
"""Factors of two over which the effect of the length decays to 1/e: chosen."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """Standard deviations of log(measured / predicted): of each effect, and of a row's own error by trust.

    Only their ratios decide a correction. `own_spread`: spread of log(step time) that no anchor explains.
    `environment`: of what the user's jobs share as others do by the effect `length`, and with those alone.
    """

    effects: Mapping[str, float]
    noise: Mapping[str, float]
    own_spread: float
    environment: float = 0.0

    def noise_of(self, trusts: Sequence[str]) -> Array:
        """Standard deviation of each row's own error; an unknown trust counts as the last."""
        return np.array([self.noise.get(trust, self.noise[TRUSTS[-1]]) for trust in trusts])

    @property
    def used(self) -> tuple[str, ...]:
        """The effects that have a variance."""
        return tuple(effect for effect in EFFECTS if self.effects[effect])


COMPARED = ("model", "gpu", "maths", "setting")
"""Fields of a descriptor that effects compare, between jobs of one family and framework."""


class JobColumns:
    """The descriptors of several jobs as arrays, with the seconds of their steps as predicted without correction, and
    whether each is of the user's environment (`own`)."""

    def __init__(
        self, jobs: Sequence[JobDescriptor], seconds: Sequence[float], own: Sequence[bool] | None = None
    ) -> None:
        # hashes instead of texts: compared a hundred at a time in every prediction
        self.ids = {name: np.array([hash(getattr(job, name)) for job in jobs], dtype=np.int64) for name in COMPARED}
        self.shares = np.array([job.shares for job in jobs], dtype=np.float64).reshape(len(jobs), len(INFORMED))
        self.length = np.log2(np.asarray(seconds, dtype=np.float64))
        self.own = np.zeros(len(jobs)) if own is None else np.array(own, dtype=np.float64)

    @classmethod
    def of(cls, anchors: Sequence[Anchor]) -> JobColumns:
        return cls(
            [anchor.job for anchor in anchors],
            [anchor.predicted_s for anchor in anchors],
            [anchor.own for anchor in anchors],
        )


def fading(one: Array, other: Array) -> Array:
    """Correlation between effects at distances in factors of two: e^(-distance / FADING)."""
    return np.asarray(np.exp(-np.abs(one[:, None] - other[None, :]) / FADING))


def shared_effects(one: JobColumns, other: JobColumns, effects: Iterable[str] = EFFECTS) -> dict[str, Array]:
    """Of every effect: whether each job of `one` (rows) shares it with each of `other` (columns), as 0 or 1; `length`
    as between steps of one length."""
    fields = {**KERNEL_EFFECTS, **OTHER_EFFECTS}
    same = {name: one.ids[name][:, None] == other.ids[name][None, :] for name in one.ids}
    every = np.ones((len(one.shares), len(other.shares)), dtype=np.bool_)
    return {
        effect: functools.reduce(np.logical_and, [same[name] for name in fields[effect]], every).astype(np.float64)
        for effect in effects
    }


def factor_covariances(covariance: Covariance, one: JobColumns, other: JobColumns) -> dict[str, Array]:
    """Covariance between the log factors of the jobs of `one` and of `other`: of each field of `Factors`, and of the
    whole step by the effect `length` and by the environment (as between steps of one length)."""
    totals = {name: np.zeros((len(one.shares), len(other.shares))) for name in (*INFORMED, "length")}
    for effect, shared in shared_effects(one, other, covariance.used).items():
        totals[term_of(effect)] += covariance.effects[effect] ** 2 * shared
    totals["length"] += environment_covariance(covariance, one, other)
    return totals


def environment_covariance(covariance: Covariance, one: JobColumns, other: JobColumns) -> Array:
    """What two of the user's jobs share by their environment, as between steps of one length."""
    both = np.outer(one.own, other.own)
    return covariance.environment**2 * both * shared_effects(one, other, ["length"])["length"]


def term_of(effect: str) -> str:
    """The field of `Factors` that an effect acts on; `length` acts on all."""
    return effect if effect in OTHER_EFFECTS else "kernels"


def effect_matrices(one: JobColumns, other: JobColumns, effects: Iterable[str] = EFFECTS) -> dict[str, Array]:
    """Of every effect: its part of the covariance between the steps' log(measured / predicted), at variance one."""
    matrices = {}
    for effect, shared in shared_effects(one, other, effects).items():
        if effect == "length":
            matrices[effect] = shared * fading(one.length, other.length)
        else:
            at = INFORMED.index(term_of(effect))
            matrices[effect] = shared * np.outer(one.shares[:, at], other.shares[:, at])
    return matrices


def step_covariance(covariance: Covariance, one: JobColumns, other: JobColumns) -> Array:
    """Covariance between log(measured / predicted) of the steps, without the rows' own errors."""
    total = environment_covariance(covariance, one, other) * fading(one.length, other.length)
    for effect, matrix in effect_matrices(one, other, covariance.used).items():
        total += covariance.effects[effect] ** 2 * matrix
    return total


def self_variance(covariance: Covariance, shares: Sequence[float]) -> float:
    """`step_covariance` of a job with itself, which shares every effect in full."""
    weights = {**dict(zip(INFORMED, shares, strict=True)), "length": 1.0}
    return sum((covariance.effects[effect] * weights[term_of(effect)]) ** 2 for effect in covariance.used)
