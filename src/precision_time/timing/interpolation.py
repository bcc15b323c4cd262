"""Interpolation between measured points: a monotone curve in one size, a smooth surface over several.

Sizes span six orders of magnitude, times are positive, and measurements err by a share, so errors are weighed as logs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

LEAST_SPREAD = 0.02
"""Least spread of log(time) of a point, however well its repeats agree."""


def logs(values: Array) -> Array:
    """Natural logarithm; what is below one counts as one."""
    return np.asarray(np.log(np.maximum(values, 1.0)), dtype=np.float64)


class MonotoneCurve:
    """Seconds by bytes: never falling, linear between points (a fixed cost and a rate).

    Below the smallest point the time is constant (the cost of the call); above the largest the bytes per second are.
    Points within `merged` of each other (natural log) are one; what still falls is averaged (pool adjacent violators).
    Straight lines on log-log axes were tried: where every other point is left out of a measured CPU they err by 24 %
    (median), these by 6 %, because most curves turn from a fixed cost to a rate between two points.
    """

    def __init__(self, sizes: Array, seconds: Array, spread: Array, merged: float = 0.01) -> None:
        order = np.argsort(sizes, kind="stable")
        x, y = logs(sizes[order]), np.log(seconds[order])
        weight = 1.0 / (spread[order] ** 2 + LEAST_SPREAD**2)
        groups: list[list[int]] = []
        for i in range(len(x)):
            if groups and x[i] - x[groups[-1][0]] <= merged:
                groups[-1].append(i)
            else:
                groups.append([i])
        blocks = [_Block(float(weight[g] @ y[g]), float(weight[g].sum()), 1) for g in map(np.array, groups)]
        self._logs = np.array([float(np.average(x[g], weights=weight[g])) for g in map(np.array, groups)])
        self._sizes, self._seconds = np.exp(self._logs), np.exp(_never_falling(blocks))
        self.deviation = float(np.sqrt(np.average((y - np.log(self.seconds(sizes[order]))) ** 2, weights=weight)))
        """Root mean square of log(measured / curve) at the points."""

    def seconds(self, sizes: Array) -> Array:
        beyond = np.maximum(sizes / self._sizes[-1], 1.0)
        return np.asarray(np.interp(sizes, self._sizes, self._seconds) * beyond, dtype=np.float64)

    def distance(self, sizes: Array) -> Array:
        """Distance to the nearest point in natural log of the size; 0 below the smallest."""
        x = np.maximum(logs(sizes), self._logs[0])
        return np.asarray(np.abs(x[:, None] - self._logs).min(axis=1), dtype=np.float64)


class _Block:
    """Neighbouring points that share one value: the weighted mean of their logarithms."""

    __slots__ = ("count", "total", "weight")

    def __init__(self, total: float, weight: float, count: int) -> None:
        self.total, self.weight, self.count = total, weight, count

    @property
    def value(self) -> float:
        return self.total / self.weight


def _never_falling(points: list[_Block]) -> Array:
    """The nearest values that never fall (isotonic regression)."""
    done: list[_Block] = []
    for point in points:
        done.append(point)
        while len(done) > 1 and done[-2].value > done[-1].value:
            last = done.pop()
            done[-1].total += last.total
            done[-1].weight += last.weight
            done[-1].count += last.count
    return np.concatenate([np.full(block.count, block.value) for block in done])


ADDITIVE, ADDITIVE_LENGTH, JOINT_LENGTH = 0.8, 4.0, 3.0
"""Share of the covariance that is a sum over single features, and the length scales (natural log) of both parts.

Utilisation is nearly a product of what each side costs, hence the sum. The lengths were chosen by leaving out single
points of a calibration of a two-core CPU (kernels alone; no training step was looked at).
"""
LABEL_SHARES = (0.1, 0.2)
"""Shares of the covariance that only points of one operator, and of one variant, have in common.

Chosen likewise, on six classes that differ by an offset and a slope: 0.21 with 60 points, against 0.46 for a surface of
each class and 0.45 for one that ignores classes.
"""
_PRIOR_DEVIATION, _PRIOR_POINTS = 0.3, 4.0
"""Prior standard deviation of log utilisation within a family, and its weight in points."""
_OUTSIDE = 0.15
"""Spread that each factor e beyond the measured box adds: chosen."""


def nonnegative(columns: Array, times: Array) -> Array:
    """Non-negative weights of the columns with the least squared relative error to the times.

    Exact: every subset of the few columns is solved, and the best without a negative weight is taken.
    """
    relative = columns / times[:, None]
    count = columns.shape[1]
    best, least = np.full(count, float(np.median(times / np.maximum(columns.sum(axis=1), 1e-30)))), np.inf
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            at = list(chosen)
            weights = np.linalg.lstsq(relative[:, at], np.ones(len(times)), rcond=None)[0]
            error = float(((relative[:, at] @ weights - 1.0) ** 2).sum())
            if (weights >= 0.0).all() and weights.any() and error < least:
                best, least = np.zeros(count), error
                best[at] = weights
    return best


class SmoothSurface:
    """Values over several features of related classes: Gaussian-process regression, solved once.

    The covariance is Matern 5/2. Labels (one column each for operator and variant) add covariance between points of one
    operator or variant. Features outside the box of the points are moved to its edge.
    """

    def __init__(self, features: Array, labels: Labels, values: Array, noise: Array) -> None:
        self._points, self._labels = features, labels
        self._low, self._high = features.min(axis=0), features.max(axis=0)
        varies = self._high > self._low
        self._used = varies if varies.any() else ~varies
        self._mean = float(values.mean())
        rest = values - self._mean
        count = len(values)
        self._variance = float((rest @ rest + _PRIOR_POINTS * _PRIOR_DEVIATION**2) / (count + _PRIOR_POINTS))
        own = self._covariance(features, labels) + np.diag(noise**2 + LEAST_SPREAD**2)
        self._root = np.linalg.inv(np.linalg.cholesky(own))
        self._weights = self._root.T @ (self._root @ rest)
        # Leave-one-out errors in closed form, over their predicted size.
        left_out = 1.0 / (self._root**2).sum(axis=0)
        surprise = float(np.sqrt(np.mean(self._weights**2 * left_out)))
        self._widen = max(surprise, 1.0) if count > 4 else 1.0

    def at(self, features: Array, labels: Labels) -> tuple[Array, Array]:
        """Values and their standard deviations; a label that no point has is a class never seen."""
        inside = np.clip(features, self._low, self._high)
        cross = self._covariance(inside, labels)
        left = np.maximum(self._variance - ((cross @ self._root.T) ** 2).sum(axis=1), 0.0)
        outside = np.sqrt(((features - inside) ** 2).sum(axis=1))
        return self._mean + cross @ self._weights, np.hypot(self._widen * np.sqrt(left), _OUTSIDE * outside)

    def _covariance(self, features: Array, labels: Labels) -> Array:
        """Between these and the points."""
        apart = features[:, None, self._used] - self._points[None, :, self._used]
        single = _matern(np.abs(apart) / ADDITIVE_LENGTH).mean(axis=2)
        joint = _matern(np.sqrt((apart**2).sum(axis=2)) / JOINT_LENGTH)
        alike = 1.0 - sum(LABEL_SHARES) + (labels[:, None, :] == self._labels[None, :, :]) @ np.array(LABEL_SHARES)
        result = self._variance * alike * (ADDITIVE * single + (1.0 - ADDITIVE) * joint)
        return np.asarray(result, dtype=np.float64)


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(5.0) * distance
    return np.asarray((1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled), dtype=np.float64)
