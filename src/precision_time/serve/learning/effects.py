"""What the jobs of a cluster share: log(measured / predicted) is a sum of effects, each with a variance.

    log(measured / predicted) = sum of the effects that a job has + the job's own + noise of one outcome

Effects are independent and normal with mean zero, so that a cluster without outcomes is not corrected. Their standard
deviations are fitted to published rows, each predicted by parameters that were fitted without its source
(`python -m benchmarks.replay.variances`), and ship in `data/variances.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.serve.learning.facets import Facets
from precision_time.shipped import shipped_file

Array = NDArray[np.float64]

EFFECTS: dict[str, tuple[str, ...]] = {
    "cluster": (),
    "GPU": ("gpu",),
    "framework": ("framework",),
    "precision": ("precision",),
    "GPU in a precision": ("gpu", "precision"),
    "family": ("family",),
    "family in a precision": ("family", "precision", "setting"),
    "model in a framework": ("model", "framework"),
    "configuration": ("model", "framework", "gpu", "precision", "setting"),
    "release": ("gpu", "framework", "release"),
    "launches": ("framework",),
}
"""Effect -> facets that two jobs of a cluster must have in common to share it."""
LAUNCHES = "launches"
"""The effect that acts in proportion to how far launching limits a job (`launching`)."""
HALF_LAUNCHING = 0.05
"""Share of kernels limited by launching at which the effect of launches is at half: chosen."""
FILE = "serve/learning/data/variances.json"


def launching(share: float) -> float:
    """Weight of the effect of launches, from 0 to below 1: where a twentieth of the kernels' time is limited by
    launching, the host is busy for about half of the step."""
    return share / (share + HALF_LAUNCHING)


@dataclass(frozen=True, slots=True)
class Variances:
    """Standard deviations of log(measured / predicted): by effect, of a job's own error, of one outcome."""

    effects: Mapping[str, float]
    job: float
    noise: float

    @property
    def squares(self) -> Array:
        """Variances of the effects, in the order of `EFFECTS`."""
        return np.array([self.effects[name] ** 2 for name in EFFECTS])


@cache
def shipped_variances() -> Variances:
    """The fitted standard deviations."""
    stored: Mapping[str, Any] = json.loads(shipped_file(FILE).read_bytes())
    return Variances({name: float(stored["effects"][name]) for name in EFFECTS}, stored["job"], stored["noise"])


class Coded:
    """The levels of several jobs as integers: jobs share an effect where its codes are equal.

    codes     (jobs x effects); weights (jobs x effects), by which an effect acts on a job
    """

    __slots__ = ("_known", "codes", "weights")

    def __init__(self, jobs: Sequence[Facets]) -> None:
        self._known: list[dict[tuple[str, ...], int]] = [{} for _ in EFFECTS]
        self.codes = np.array([self._codes(job) for job in jobs], dtype=np.int64).reshape(len(jobs), len(EFFECTS))
        self.weights = np.array([_weights(job) for job in jobs], dtype=np.float64).reshape(self.codes.shape)

    def _codes(self, job: Facets) -> list[int]:
        return [
            known.setdefault(tuple([getattr(job, name) for name in names]), len(known))
            for known, names in zip(self._known, EFFECTS.values(), strict=True)
        ]

    def shared(self, squares: Array) -> Array:
        """Covariances between the jobs, without their own errors. `squares`: variances of the effects."""
        total = np.zeros((len(self.codes), len(self.codes)))
        for effect in np.flatnonzero(squares).tolist():
            column, weight = self.codes[:, effect], self.weights[:, effect]
            same = column[:, None] == column[None, :]
            total += squares[effect] * (same if (weight == 1.0).all() else same * np.outer(weight, weight))
        return total

    def shared_with(self, job: Facets, squares: Array) -> Array:
        """Covariances of another job with these."""
        codes = [
            known.get(tuple([getattr(job, name) for name in names]), -1)
            for known, names in zip(self._known, EFFECTS.values(), strict=True)
        ]
        same = self.codes == np.array(codes, dtype=np.int64)
        return np.asarray((same * self.weights) @ (squares * np.array(_weights(job))), dtype=np.float64)


def _weights(job: Facets) -> list[float]:
    return [launching(job.launch) if name == LAUNCHES else 1.0 for name in EFFECTS]


def prior_variance(job: Facets, squares: Array) -> float:
    """Variance of what a job shares, before any outcome."""
    return float(squares @ np.square(_weights(job)))
