"""Gaussian processes over configurations, as CherryPick needs them: Matern 5/2, one length scale for each feature.

`Likelihood` uses the hyperparameters of greatest likelihood, with scikit-learn's process. After few runs these are
overconfident: a feature without visible effect gets an infinite length scale. `Averaged` weights many hyperparameters,
drawn once from a prior, by their likelihood: one batched solve replaces many fits. `slice_sampling.Sampled` averages as
the authors' code does.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_time.bounded_cache import bounded
from precision_time.predictors.cloud_search import FloatArray


@dataclass(frozen=True, slots=True)
class Belief:
    """The posterior of log C at some places: a mixture of normals, a row for every set of hyperparameters."""

    weights: FloatArray
    mean: FloatArray
    deviation: FloatArray

    def expected_improvement(self, best: float) -> FloatArray:
        """E[max(0, best - Y)] at every place."""
        gain: FloatArray = self.weights @ expected_improvement(self.mean, self.deviation, best)
        return gain

    def improvement_within(self, best: float, limit: FloatArray) -> FloatArray:
        """E[max(0, best - Y); Y <= limit] at every place: the improvement counts only below a limit."""
        from scipy.special import ndtr

        reach = np.minimum(best, limit)
        gain = expected_improvement(self.mean, self.deviation, reach)
        gain = gain + (best - reach) * ndtr((reach - self.mean) / self.deviation)
        expected: FloatArray = self.weights @ gain
        return expected

    def below(self, limit: FloatArray) -> FloatArray:
        """P(Y <= limit) at every place."""
        from scipy.special import ndtr

        chance: FloatArray = self.weights @ ndtr((limit - self.mean) / self.deviation)
        return chance

    @property
    def middle(self) -> FloatArray:
        """E[Y] at every place."""
        middle: FloatArray = self.weights @ self.mean
        return middle

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of Y at every place."""
        second = self.weights @ (self.mean**2 + self.deviation**2)
        spread: FloatArray = np.sqrt(np.maximum(second - self.middle**2, 1e-12))
        return spread


def expected_improvement(mean: FloatArray, deviation: FloatArray, best: float | FloatArray) -> FloatArray:
    """E[max(0, best - Y)] of Y ~ N(mean, deviation^2), deviation above 0."""
    from scipy.special import ndtr

    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    gain: FloatArray = np.maximum(deviation * (z * ndtr(z) + density), 0.0)
    return gain


@dataclass(frozen=True, slots=True)
class Likelihood:
    """One set of hyperparameters, fitted. Bounds for features on [0, 1] and log C of unit variance: chosen."""

    length_scales: tuple[float, float] = (0.1, 10.0)
    noise: tuple[float, float] = (1e-4, 0.1)
    restarts: int = 0

    def __call__(self, places: FloatArray, known: FloatArray, asked: FloatArray, seed: int) -> Belief:
        """Of log C at `asked`, given `known` at `places`; without the noise of a single run."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        scale = float(known.std()) or 1.0
        shape = Matern([1.0] * places.shape[1], self.length_scales, nu=2.5)
        noise = WhiteKernel(math.sqrt(self.noise[0] * self.noise[1]), self.noise)
        model: Any = GaussianProcessRegressor(
            1.0 * shape + noise, n_restarts_optimizer=self.restarts, random_state=seed
        )
        with warnings.catch_warnings():
            # A feature without effect has a length scale at its bound.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(places, (known - known.mean()) / scale)
        mean, deviation = model.predict(asked, return_std=True)
        latent = np.sqrt(np.maximum(deviation**2 - model.kernel_.k2.noise_level, 1e-12))
        return Belief(np.ones(1), (mean * scale + known.mean())[None], (latent * scale)[None])


@dataclass(frozen=True, slots=True)
class Averaged:
    """Hyperparameters drawn from a prior and weighted by their likelihood.

    length_scale, length_spread   median on features of [0, 1], and standard deviation of its logarithm
    amplitude, amplitude_spread   the same of the standard deviation of log C
    noise                         range of the noise's share of the variance, log-uniform
    draws                         points of a quasi-random sequence, the same ones each time
    The mean of log C is unknown, with the variance of the process.
    """

    length_scale: float = 0.5
    length_spread: float = 1.0
    amplitude: float = 1.0
    amplitude_spread: float = 0.7
    noise: tuple[float, float] = (1e-4, 1e-2)
    draws: int = 64

    def __call__(self, places: FloatArray, known: FloatArray, asked: FloatArray, seed: int) -> Belief:
        """Of log C at `asked`, given `known` at `places`; without the noise of a single run. Takes no seed."""
        lengths, variance, noise = self.sample(places.shape[1])
        middle = known.mean()
        inside = matern(places, places, lengths) + 1.0 + noise[:, None, None] * np.eye(len(places))
        across = matern(places, asked, lengths) + 1.0
        lower = np.linalg.cholesky(inside * variance[:, None, None])
        solved = np.linalg.solve(
            lower, np.concatenate([across * variance[:, None, None], self._column(known - middle)], axis=2)
        )
        across, residual = solved[:, :, :-1], solved[:, :, -1:]
        fit = -0.5 * np.sum(residual[:, :, 0] ** 2, axis=1)
        fit -= np.sum(np.log(np.diagonal(lower, axis1=1, axis2=2)), axis=1)
        weights = np.exp(fit - fit.max())
        left = 2.0 * variance[:, None] - np.sum(across**2, axis=1)
        mean = np.sum(across * residual, axis=1) + middle
        return Belief(weights / weights.sum(), mean, np.sqrt(np.maximum(left, 1e-12)))

    def _column(self, values: FloatArray) -> FloatArray:
        return np.broadcast_to(values[None, :, None], (self.draws, len(values), 1))

    def sample(self, features: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(length scales by draw and feature, variance, noise share) of every draw."""
        from scipy.special import ndtri

        uniform = _uniform(features + 2, self.draws)
        normal = ndtri(uniform)
        low, high = (math.log(v) for v in self.noise)
        return (
            self.length_scale * np.exp(self.length_spread * normal[:, :features]),
            (self.amplitude * np.exp(self.amplitude_spread * normal[:, features])) ** 2,
            np.exp(low + (high - low) * uniform[:, features + 1]),
        )


@bounded()
def _uniform(dimensions: int, draws: int) -> FloatArray:
    from scipy.stats import qmc

    points: Any = qmc.Sobol(dimensions, rng=np.random.default_rng(0))
    drawn: FloatArray = np.clip(points.random(draws), 1e-6, 1.0 - 1e-6)
    drawn.setflags(write=False)
    return drawn


def matern(first: FloatArray, second: FloatArray, lengths: FloatArray) -> FloatArray:
    """Matern 5/2 correlations, (draws, first, second)."""
    gaps = (first[:, None, :] - second[None, :, :]) ** 2
    # sum over features of gap / length^2, as a product of matrices
    squared = gaps.reshape(-1, gaps.shape[2]) @ (lengths**-2.0).T
    far = np.sqrt(5.0 * np.maximum(squared, 0.0)).T.reshape(len(lengths), len(first), len(second))
    correlations: FloatArray = (1.0 + far + far**2 / 3.0) * np.exp(-far)
    return correlations
