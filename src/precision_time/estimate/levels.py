"""Equally probable levels of independent quantities, and the distribution of their sum.

The parts of a run vary independently: start-up, the speed of its steps, failures. Their sum has no formula, so it is
taken at `COUNT` points that fill the space of levels evenly (an additive recurrence with the generalised golden ratio:
Roberts 2018, "The unreasonable effectiveness of quasirandom sequences"). The points are always the same, so equal jobs
have equal results, and a part that grows at every level never makes the sum smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from precision_time.estimate.interval import Z90, Interval

Floats = NDArray[np.float64]

COUNT = 1024
AXES = 8
"""Most quantities that vary independently."""
LEVELS = (0.01, 0.05, *(n / 10 for n in range(1, 10)), 0.95, 0.99)
"""Quantiles that a `Distribution` keeps."""
_LEVELS, _TENTHS, _HALF = np.array(LEVELS), np.array([0.1, 0.5, 0.9]), np.array([0.5])
_NORMAL = NormalDist()
_SCORES = [_NORMAL.inv_cdf(level) for level in LEVELS]
_P10, _P50, _P90 = (LEVELS.index(level) for level in (0.1, 0.5, 0.9))


@cache
def uniform(axis: int) -> Floats:
    """`COUNT` numbers from 0 to 1, each share of which is equally frequent; axes are independent of each other."""
    ratio = 2.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (AXES + 1))
    points = (0.5 + np.arange(1, COUNT + 1) * ratio ** -(axis + 1)) % 1.0
    ranks = points.argsort().argsort()
    even: Floats = (ranks + 0.5) / COUNT
    even.setflags(write=False)
    return even


@cache
def normal(axis: int) -> Floats:
    """The same, of the standard normal distribution."""
    values = np.array([_NORMAL.inv_cdf(u) for u in uniform(axis).tolist()])
    values.setflags(write=False)
    return values


def of_interval(interval: Interval, axis: int) -> Floats:
    """Values of a quantity with these percentiles: log-normal on either side of the median."""
    low, middle, high = interval.p10, interval.p50, interval.p90
    if not low < high or low <= 0.0:
        return np.full(COUNT, middle)
    at = normal(axis)
    below, above = np.log(middle / low) / Z90, np.log(high / middle) / Z90
    values: Floats = middle * np.exp(at * np.where(at < 0.0, below, above))
    return values


def quantiles(values: Floats, probabilities: Floats) -> list[float]:
    """Quantiles of equally probable values, as `numpy.quantile` has them but in a fifth of its time."""
    ordered = np.sort(values)
    at: list[float] = np.interp(probabilities * (len(ordered) - 1), np.arange(len(ordered)), ordered).tolist()
    return at


def median(values: Floats) -> float:
    """The middle of equally probable values."""
    return quantiles(values, _HALF)[0]


def interval_of(values: Floats) -> Interval:
    """P10, P50 and P90 of equally probable values."""
    return Interval(*quantiles(values, _TENTHS))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Quantiles of a time in seconds at `LEVELS`. Between them the logarithm is linear in the normal quantile, and so
    it goes on beyond them."""

    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: Floats) -> Distribution:
        return cls(tuple(quantiles(values, _LEVELS)))

    @classmethod
    def of_interval(cls, interval: Interval, least: float = 0.0) -> Distribution:
        """Log-normal on either side of the median, at least `least`."""
        low, middle, high = interval.p10, interval.p50, interval.p90
        if not 0.0 < low < high:
            return cls((middle,) * len(LEVELS))
        below, above = log(middle / low) / Z90, log(high / middle) / Z90
        return cls(tuple(max(middle * exp(z * (below if z < 0.0 else above)), least) for z in _SCORES))

    @property
    def interval(self) -> Interval:
        q = self.quantiles
        return Interval(q[_P10], q[_P50], q[_P90])

    @property
    def median(self) -> float:
        return self.quantiles[_P50]

    def scaled(self, factor: float) -> Distribution:
        return Distribution(tuple(q * factor for q in self.quantiles))

    def later(self, seconds: float) -> Distribution:
        """The same with so many seconds more."""
        return Distribution(tuple(q + seconds for q in self.quantiles))

    def quantile(self, probability: float) -> float:
        """The time that the run stays below with this probability."""
        z = _NORMAL.inv_cdf(min(max(probability, 1e-9), 1.0 - 1e-9))
        logs, at = self._curve()
        low = _segment(at, z)
        slope = (logs[low + 1] - logs[low]) / (at[low + 1] - at[low])
        return float(np.exp(logs[low] + slope * (z - at[low])))

    def probability(self, seconds: float) -> float:
        """The probability of a time of at most `seconds`."""
        if seconds <= 0.0:
            return 0.0
        logs, at = self._curve()
        if logs[-1] - logs[0] < 1e-12:
            return 1.0 if seconds >= self.quantiles[0] else 0.0
        wanted = float(np.log(seconds))
        low = _segment(logs, wanted)
        rise = logs[low + 1] - logs[low]
        if rise <= 0.0:
            return LEVELS[low + 1]
        z = at[low] + (wanted - logs[low]) / rise * (at[low + 1] - at[low])
        return _NORMAL.cdf(float(z))

    def _curve(self) -> tuple[list[float], list[float]]:
        logs: list[float] = np.log(np.maximum(self.quantiles, 1e-300)).tolist()
        return logs, _SCORES


def _segment(knots: Sequence[float], value: float) -> int:
    """The place of the piece that `value` lies in; the first or last one outside."""
    return min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
