"""Least squares under linear inequalities, and the inequalities that keep a corrected time monotone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from precision_time.timing.corrections import AXES, CURVE, ROW, TERMS, UP
from precision_time.timing.curves import Array

STEEPEST = 0.95
"""Largest share of its growth along the curve that a correction may take from time; below one, time still grows."""
_FLATTEST = 0.002
"""Least fall of g along the curve; else rounding could make a doubled batch cost more than twice."""
_ROUNDS, _RELAXED, _CLOSE = 4000, 1.6, 1e-4


class Monotone:
    """The inequalities A x >= b of one class: x holds the coefficients of its tables, then two bounds on the slope of
    each table along the curve between neighbouring knots.
    """

    def __init__(self, curve: str, knots: Mapping[str, Array]) -> None:
        terms = TERMS[curve]
        self.shapes = [(len(knots[one]), len(knots[other])) for one, other in terms]
        self.count = sum(rows * columns for rows, columns in self.shapes)
        along = [j for j, (one, _) in enumerate(terms) if one == CURVE]
        steps = np.diff(knots[CURVE])
        bounds = {j: self.count + 2 * len(steps) * k for k, j in enumerate(along)}
        self.size = self.count + 2 * len(steps) * len(along)
        entries: list[dict[Any, float]] = []
        least: list[float] = []

        def require(weights: dict[Any, float], value: float) -> None:
            entries.append(weights)
            least.append(value)

        first = 0
        for j, (one, other) in enumerate(terms):
            at = first + np.arange(self.shapes[j][0] * self.shapes[j][1]).reshape(self.shapes[j])
            first += at.size
            for name, indices in ((one, at), (other, at.T)):
                kind = UP if name == CURVE else AXES[curve][name][1]
                if name == CURVE:
                    for i, step in enumerate(steps):
                        low, high = bounds[j] + 2 * i, bounds[j] + 2 * i + 1
                        for a, b in zip(indices[i], indices[i + 1], strict=True):
                            require({b: 1.0 / step, a: -1.0 / step, low: -1.0}, 0.0)
                            require({b: -1.0 / step, a: 1.0 / step, high: 1.0}, 0.0)
                elif kind == UP:
                    for before, after in zip(indices[:-1].ravel(), indices[1:].ravel(), strict=True):
                        require({after: 1.0, before: -1.0}, 0.0)
                elif kind == ROW:
                    for step, before, after in zip(np.diff(knots[name]), indices[:-1], indices[1:], strict=True):
                        for i in range(len(steps)):
                            for k in (i, i + 1):
                                slope = {after[k]: 1.0 / step, before[k]: -1.0 / step, bounds[j] + 2 * i: 1.0}
                                require(slope, -STEEPEST)
        for i in range(len(steps)):
            require({bounds[j] + 2 * i: 1.0 for j in along}, -STEEPEST)
            require({bounds[j] + 2 * i + 1: -1.0 for j in along}, _FLATTEST)
        row = np.repeat(np.arange(len(entries)), [len(weights) for weights in entries])
        column = [c for weights in entries for c in weights]
        value = [v for weights in entries for v in weights.values()]
        self.matrix = sparse.csr_matrix((value, (row, column)), shape=(len(entries), self.size))
        self.least = np.array(least)
        self._gram = np.asarray((self.matrix.T @ self.matrix).todense())

    def solve(self, hessian: Array, gradient: Array) -> Array:
        """The coefficients x that make x' H x / 2 - g' x least, by alternating directions (OSQP, arXiv:1711.08013)."""
        full = np.zeros((self.size, self.size))
        full[: self.count, : self.count] = hessian
        full[np.arange(self.count, self.size), np.arange(self.count, self.size)] = 1e-6
        linear = np.concatenate([gradient, np.zeros(self.size - self.count)])
        weight, slack = 0.1, 1e-6
        x, z, y = np.zeros(self.size), np.maximum(self.least, 0.0), np.zeros(len(self.least))
        inverse = np.linalg.inv(full + slack * np.eye(self.size) + weight * self._gram)
        for count in range(1, _ROUNDS + 1):
            new = inverse @ (slack * x + linear + self.matrix.T @ (weight * z - y))
            moved = self.matrix @ new
            relaxed = _RELAXED * moved + (1.0 - _RELAXED) * z
            x = _RELAXED * new + (1.0 - _RELAXED) * x
            last, z = z, np.maximum(self.least, relaxed + y / weight)
            y = y + weight * (relaxed - z)
            if count % 50 == 0:
                primal, dual = np.abs(moved - z).max(), weight * np.abs(self.matrix.T @ (z - last)).max()
                if max(primal, dual) < _CLOSE:
                    break
                ratio = float(np.sqrt(primal / max(dual, 1e-12)))
                if count % 200 == 0 and not 0.2 < ratio < 5.0:
                    weight = float(np.clip(weight * ratio, 1e-4, 1e4))
                    inverse = np.linalg.inv(full + slack * np.eye(self.size) + weight * self._gram)
        result: Array = x[: self.count]
        return result

    def tables(self, x: Array) -> list[Array]:
        """One table per term."""
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(x, ends), self.shapes, strict=True)]


def level(curve: str, tables: Sequence[Array], digits: int = 4) -> list[Array]:
    """The tables rounded, with the small falls along a size that the solver leaves made flat."""
    result = []
    for (one, other), table in zip(TERMS[curve], tables, strict=True):
        flat = table
        for axis, name in enumerate((one, other)):
            if name != CURVE and AXES[curve][name][1] == UP:
                flat = np.maximum.accumulate(flat, axis=axis)
        result.append(np.round(flat, digits))
    return result
