"""A Gaussian process whose hyperparameters are sampled, as CherryPick's authors do: Matern 5/2, one length scale each.

Their public code (harvard-cns/cherrypick, commit 3c0eeab) contains a modified Spearmint (Snoek et al., NeurIPS 2012).
Mean, variance and noise of log C, then the length scales, are updated by slice sampling (Neal, Annals of Statistics
2003), and the expected improvement is the mean over the samples. It has two choosers: the default one samples the noise
and takes 10 samples after 100 of burn-in; the other has a fixed noise of 0.02 and takes 40 samples without burn-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.predictors.cloud_search import FloatArray
from precision_time.predictors.surrogate import Belief, matern

JITTER = 1e-6
"""Added to the correlation of a place with itself, as in the authors' code."""
ANEW = 16
"""The chain begins anew at every multiple of so many observations, which bounds the work of a search that goes on."""
NARROWEST = 1e-12
"""Width of an interval in which no better point than the present one is looked for."""
LogDensity = Callable[[FloatArray], float]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Priors and length of the chain; the defaults are those of the authors' default chooser.

    samples, burn_in   samples that are averaged, after those that are dropped
    longest            length scales are uniform on (0, longest), for features on [0, 1]
    noise              variance of a single run of log C; None: sampled, with the density log(1 + (noise_scale / v)^2)
    The variance of log C has a density proportional to exp(-(log v)^2 / 2); the mean is uniform between the least and
    the greatest observation.
    """

    samples: int = 10
    burn_in: int = 100
    longest: float = 2.0
    noise: float | None = None
    noise_scale: float = 0.1

    def __call__(self, places: FloatArray, known: FloatArray, asked: FloatArray, seed: int) -> Belief:
        """Of log C at `asked`, given `known` at `places`; without the noise of a single run."""
        levels, lengths = _samples(self, seed, places.shape[1], places.tobytes(), known.tobytes())
        found = [_posterior(places, known, asked, *each) for each in zip(levels, lengths, strict=True)]
        weights = np.full(len(found), 1.0 / len(found))
        return Belief(weights, np.array([mean for mean, _ in found]), np.array([spread for _, spread in found]))


@bounded()
def _samples(prior: Sampled, seed: int, features: int, places: bytes, known: bytes) -> tuple[FloatArray, FloatArray]:
    """(levels, length scales) that are averaged, a row for each.

    The chain goes on from the last sample without the last observation, as the authors' does; at 2 observations and at
    every `ANEW` it begins with a burn-in. So a search that was stopped goes on as it would have.
    """
    x = np.frombuffer(places).reshape(-1, features)
    y = np.frombuffer(known)
    chain = _Chain(prior, x, y, np.random.default_rng([seed, len(y)]))
    if len(y) <= 2 or len(y) % ANEW == 0:
        for _ in range(prior.burn_in):
            chain.step()
    else:
        levels, lengths = _samples(prior, seed, features, places[: -8 * features], known[:-8])
        chain.go_on(levels[-1], lengths[-1])
    found = [chain.step() for _ in range(prior.samples)]
    return np.array([level for level, _ in found]), np.array([lengths for _, lengths in found])


class _Chain:
    """The present hyperparameters, and their update."""

    def __init__(self, prior: Sampled, places: FloatArray, known: FloatArray, draws: np.random.Generator) -> None:
        self._prior, self._known, self._draws = prior, known, draws
        gaps = (places[:, None, :] - places[None, :, :]) ** 2
        self._gaps = np.ascontiguousarray(gaps.reshape(-1, places.shape[1]).T)
        self._limits = float(known.min()), float(known.max())
        start = prior.noise if prior.noise is not None else 1e-3
        self._level = np.array([known.mean(), known.std() + 1e-4, start])
        """Mean, variance, and variance of the noise."""
        self._lengths = np.ones(places.shape[1])

    def go_on(self, level: FloatArray, lengths: FloatArray) -> None:
        """Take these hyperparameters as the present ones; the mean is kept between the observations."""
        self._level = level.copy()
        self._level[0] = min(max(level[0], self._limits[0]), self._limits[1])
        self._lengths = lengths

    def step(self) -> tuple[FloatArray, FloatArray]:
        """The next sample: the level along a random direction, then every length scale."""
        correlations = self._correlations(self._lengths)
        self._level = along(
            lambda level: self._level_density(level, correlations), self._level, self._direction(), self._draws
        )
        for axis in self._draws.permutation(len(self._lengths)):
            direction = np.zeros(len(self._lengths))
            direction[axis] = 1.0
            self._lengths = along(self._length_density, self._lengths, direction, self._draws)
        return self._level, self._lengths

    def _direction(self) -> FloatArray:
        """Random, within the hyperparameters that vary."""
        direction = self._draws.normal(size=3)
        direction[0] *= self._limits[0] < self._limits[1]
        direction[2] *= self._prior.noise is None
        unit: FloatArray = direction / np.linalg.norm(direction)
        return unit

    def _correlations(self, lengths: FloatArray) -> FloatArray:
        far = np.sqrt((5.0 / (lengths * lengths)) @ self._gaps).reshape(len(self._known), -1)
        correlations: FloatArray = (1.0 + far + far * far / 3.0) * np.exp(-far)
        return correlations

    def _likelihood(self, correlations: FloatArray, level: FloatArray) -> float:
        """log N(known; mean, covariance), without its constant; -inf where the covariance cannot be factored."""
        off = self._known - level[0]
        factor, solved, fault = _dposv()(_covariance(correlations, level[1], level[2]), off, lower=1)
        if fault:
            return -math.inf
        return -math.fsum(map(math.log, factor.diagonal().tolist())) - 0.5 * float(off @ solved)

    def _level_density(self, level: FloatArray, correlations: FloatArray) -> float:
        mean, variance, noise = level.tolist()
        low, high = self._limits
        if not low <= mean <= high or variance <= 0.0 or noise <= 0.0:
            return -math.inf
        density = self._likelihood(correlations, level) - 0.5 * math.log(variance) ** 2
        if self._prior.noise is None:
            density += math.log(math.log1p((self._prior.noise_scale / noise) ** 2))
        return density

    def _length_density(self, lengths: FloatArray) -> float:
        if not all(0.0 < length <= self._prior.longest for length in lengths.tolist()):
            return -math.inf
        return self._likelihood(self._correlations(lengths), self._level)


def _covariance(correlations: FloatArray, variance: float, noise: float) -> FloatArray:
    covariance: FloatArray = variance * correlations
    covariance.flat[:: len(covariance) + 1] += variance * JITTER + noise
    return covariance


def _posterior(
    places: FloatArray, known: FloatArray, asked: FloatArray, level: FloatArray, lengths: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of log C at `asked`, with these hyperparameters."""
    mean, variance, noise = level
    lower = np.linalg.cholesky(_covariance(matern(places, places, lengths[None])[0], variance, noise))
    across = variance * matern(places, asked, lengths[None])[0]
    solved = np.linalg.solve(lower, np.column_stack([across, known - mean]))
    left = variance * (1.0 + JITTER) - np.sum(solved[:, :-1] ** 2, axis=0)
    return mean + solved[:, :-1].T @ solved[:, -1], np.sqrt(np.maximum(left, 1e-12))


@cache
def _dposv() -> Any:
    """LAPACK's solution of a symmetric positive definite system; SciPy is loaded when it is first needed."""
    from scipy.linalg.lapack import dposv

    return dposv


def along(
    density: LogDensity, point: FloatArray, direction: FloatArray, draws: np.random.Generator, width: float = 1.0
) -> FloatArray:
    """The next point of a slice sampler that moves along `direction`: step out by `width`, then shrink.

    `density` is the logarithm of a density, up to a constant; it is finite at `point`.
    """
    floor = density(point) + math.log1p(-draws.random())
    low = -width * draws.random()
    high = low + width
    while density(point + low * direction) > floor:
        low -= width
    while density(point + high * direction) > floor:
        high += width
    while high - low > NARROWEST:
        at = draws.uniform(low, high)
        moved = point + at * direction
        if density(moved) > floor:
            return moved
        low, high = (at, high) if at < 0.0 else (low, at)
    return point
