"""Compute time as rooflines over utilisations, fitted to measured steps: what gradient boosting starts from.

    device = sum over groups of kernels and dtype classes of exp(theta) x roofline seconds + kernels x launch
    compute = (device^p + host^p)^(1/p) / (1 - bubble)        p = 1 on a CPU, where they alternate

theta is the log of one over a utilisation. It is the sum of a part common to all kernels and of departures by family
of kernels, group, dtype class and architecture, each shrunk towards zero (partial pooling). A few rows of one group
therefore change other groups little, and an unseen architecture or class has the common parts. Fitted by least squares
on log(seconds) with these priors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precision_time.predictors.facts import Facts
from precision_time.timing.step_factors import DEPARTS

Array = NDArray[np.float64]

COMMON, SPREAD_COMMON = math.log(1.4), 1.0
"""Prior of the common part: kernels reach seven tenths of their roofline, within a factor of e."""
LEVELS = (1.0, 0.7, 0.7, 0.5)
"""Prior widths of the departures by family, group, class and architecture, over the family's; those below the family
as step factors have them (`timing.step_factors.parts`)."""
ROW_ERROR = 0.10
"""Standard deviation of the error of a single row."""
LAUNCH_S = 3e-6
"""Seconds from one kernel to the next on a busy device, before its fitted factor."""
POWER = 6.0
"""Exponent p of host and device time: chosen, so that the result is close to the larger of the two."""
_SCALARS = {":launch": 0.5, ":host": 0.5}
_ROUNDS = 25


def parts(group: str, kind: str, arch: str) -> tuple[tuple[str, float], ...]:
    """Names of the departures that add up to a theta, with their prior widths over that of a family."""
    family = DEPARTS.get(group, group.partition(".")[0])
    of_group = () if family == group else ((f"{group}", LEVELS[1]),)
    return ((f"{family}*", LEVELS[0]), *of_group, (f"{group}|{kind}", LEVELS[2]), (f"{group}|{kind}|{arch}", LEVELS[3]))


@dataclass(frozen=True, slots=True)
class Rooflines:
    """Fitted parts by name; a part that no training row had is zero."""

    theta: Mapping[str, float] = field(default_factory=lambda: {":common": COMMON})
    _factors: dict[tuple[str, str, str], float] = field(default_factory=dict, repr=False, compare=False)

    def log_factor(self, group: str, kind: str, arch: str) -> float:
        """Log of seconds over roofline seconds of these kernels."""
        departures = sum(self.theta.get(name, 0.0) for name, _ in parts(group, kind, arch))
        return self.theta.get(":common", COMMON) + departures

    def seconds(self, facts: Facts) -> float:
        """Compute seconds of a step, without communication."""
        theta, arch = self.theta, facts.cluster.gpu.arch
        device = facts.kernels * LAUNCH_S * math.exp(theta.get(":launch", 0.0))
        for (group, kind), seconds in facts.roofs.items():
            key = (group, kind, arch)
            if key not in self._factors:  # of few kernels, and asked for by every job
                self._factors[key] = math.exp(self.log_factor(*key))
            device += seconds * self._factors[key]
        host = facts.host_s * math.exp(theta.get(":host", 0.0))
        power = _power(facts)
        return float((device**power + host**power) ** (1.0 / power) / (1.0 - facts.bubble))


def _power(facts: Facts) -> float:
    """1 (the sum) where host and kernels run on the same cores, one after another."""
    return 1.0 if facts.in_turns else POWER


class _Design:
    """The jobs as arrays: seconds of every (group, class, architecture), and which parts make up its theta."""

    def __init__(self, jobs: Sequence[Facts], width: float) -> None:
        keys: dict[tuple[str, str, str], int] = {}
        for facts in jobs:
            for group, kind in facts.roofs:
                keys.setdefault((group, kind, facts.cluster.gpu.arch), len(keys))
        priors: dict[str, float] = {":common": SPREAD_COMMON, **_SCALARS}
        for key in keys:
            priors |= {name: width * level for name, level in parts(*key)}
        self.names = list(priors)
        self.prior = np.array(list(priors.values()))
        self.mean = np.zeros(len(priors))
        self.mean[0] = COMMON
        index = {name: i for i, name in enumerate(self.names)}
        self.of_key = np.zeros((len(keys), len(priors)))
        self.of_key[:, 0] = 1.0
        for key, at in keys.items():
            for name, _ in parts(*key):
                self.of_key[at, index[name]] = 1.0
        self.roofs = np.zeros((len(jobs), len(keys)))
        for i, facts in enumerate(jobs):
            for (group, kind), seconds in facts.roofs.items():
                self.roofs[i, keys[group, kind, facts.cluster.gpu.arch]] = seconds
        self.launch = np.array([facts.kernels * LAUNCH_S for facts in jobs])
        self.host = np.array([facts.host_s for facts in jobs])
        self.power = np.array([_power(facts) for facts in jobs])
        self.idle = np.array([1.0 - facts.bubble for facts in jobs])

    def log_seconds(self, theta: Array) -> tuple[Array, Array]:
        """log of compute seconds of every job, and its slopes over theta."""
        terms = self.roofs * np.exp(self.of_key @ theta)
        launch = self.launch * math.exp(theta[1])
        device = terms.sum(axis=1) + launch
        host = self.host * math.exp(theta[2])
        share = device**self.power / (device**self.power + host**self.power)  # of the step's log that the device moves
        slopes = (terms @ self.of_key) * (share / device)[:, None]
        slopes[:, 1] += share * launch / device
        slopes[:, 2] += 1.0 - share
        return np.log(device) - np.log(share) / self.power - np.log(self.idle), slopes


def fit_rooflines(
    jobs: Sequence[Facts], seconds: Sequence[float] | Array, experiments: Sequence[str], width: float
) -> Rooflines:
    """The most likely parts; `seconds` are the jobs' compute times, `width` is the prior width of a family.

    `experiments` names the experiment of each row (a model on a GPU). Its n rows have correlated errors and together
    weigh sqrt(n).
    """
    if not jobs:
        return Rooflines()
    design = _Design(jobs, width)
    counts: dict[str, int] = {}
    for name in experiments:
        counts[name] = counts.get(name, 0) + 1
    weight = np.array([counts[name] ** -0.5 for name in experiments]) / ROW_ERROR**2
    target = np.log(np.asarray(seconds, dtype=np.float64))
    theta, shrink = design.mean.copy(), np.diag(design.prior**-2)
    for _ in range(_ROUNDS):
        predicted, slopes = design.log_seconds(theta)
        residual = target - predicted + slopes @ theta
        # Outliers get Huber's weights beyond 3 standard deviations.
        far = np.minimum(1.0, 3.0 * ROW_ERROR / np.maximum(np.abs(target - predicted), 1e-9))
        normal = slopes.T @ (slopes * (weight * far)[:, None]) + shrink
        solution = np.linalg.solve(normal, slopes.T @ (weight * far * residual) + shrink @ design.mean)
        change, theta = float(np.abs(solution - theta).max()), theta + np.clip(solution - theta, -0.5, 0.5)
        if change < 1e-4:
            break
    return Rooflines(dict(zip(design.names, map(float, theta), strict=True)))
