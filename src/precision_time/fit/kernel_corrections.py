"""Fits the corrections of kernel curves (`timing/corrections.py`) to measured rows.

The shared tables of a class are fitted first, from all its devices with equal weight; then each device departs from
them. Both are least squares on log time in which large residuals count linearly, with a penalty on second differences
and on the size of g, or of the departure. The strength of the shared penalty is chosen by leaving out one device at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from precision_time.fit.kernel_curves import QUANTISING
from precision_time.fit.kernel_tables import Rows
from precision_time.fit.monotone import Monotone, level
from precision_time.timing.corrections import TERMS, Knots, coordinates
from precision_time.timing.curves import INDEX, Array
from precision_time.timing.kernels import KernelModel, WorkTable
from precision_time.timing.parameters import ParameterBook
from precision_time.timing.work import MATMUL

Sets = dict[str, dict[str, Any]]

STRENGTHS = (0.01, 0.1, 1.0)
"""Penalties on second differences of the shared tables to choose from; the penalty on g itself is a tenth of that."""
OWN_STRENGTH = 0.003
"""The same for the departure of a device."""
_ROUNDS = 4
_LINEAR_FROM = 0.04
"""Residual of log2 time above which rows count linearly, not by the square."""
_SPAN = 1.6
"""Least distance of knots, in log2."""
_MOST_KNOTS = 9


@dataclass(frozen=True, slots=True)
class Base:
    """Rows of a device: busy seconds of their curve, the other seconds of each call, and the measured seconds."""

    device: str
    table: WorkTable
    busy: Array
    rest: Array
    seconds: Array


def call_overhead(sets: Sets, rows: Rows) -> float:
    """Seconds that these rows, timed alone, take beyond the start of a kernel."""
    fitted = sets[f"{rows.curve}|{rows.kind}"][rows.gpu.kernel_name]
    return max(0.0, float(fitted.get("isolated_call_overhead_s", 0.0)) - float(fitted["values"]["start"]))


def as_timed(rows: Rows, sets: Sets) -> Rows:
    """`rows` with the cost of quantising inside their timed calls, as fitted on their device."""
    factor = sets[f"{rows.curve}|{rows.kind}"][rows.gpu.kernel_name].get(QUANTISING)
    if factor is None:
        return rows
    return replace(rows, works=[replace(work, serial_bytes=work.serial_bytes * factor) for work in rows.works])


def fit_class(groups: Sequence[Rows], sets: Sets, devices: bool = True) -> dict[str, Any]:
    """The tables of one class of kernels, as kernels.json holds them; `devices`: with the departures of the devices."""
    problem = Problem(groups[0].curve, [base_of(rows, sets) for rows in groups])
    strength = problem.strength()
    shared = problem.fit(range(len(groups)), strength)
    departures = {
        base.device: problem.as_tables(problem.fit([number], OWN_STRENGTH, shared))
        for number, base in enumerate(problem.bases if devices else [])
    }
    return {
        "rows": sum(len(rows) for rows in groups),
        "file": groups[0].source,
        "strength": strength,
        **({"batched": problem.batched} if problem.curve == MATMUL else {}),
        "knots": {name: at.tolist() for name, at in problem.knots.items()},
        "shared": problem.as_tables(shared),
        "devices": departures,
    }


def fit_corrections(rows: Sequence[Rows], sets: Sets) -> dict[str, Any]:
    """Tables of every class with corrections, keyed "curve|dtype class"."""
    classes: dict[str, list[Rows]] = {}
    for group in rows:
        if group.curve in TERMS:
            classes.setdefault(f"{group.curve}|{group.kind}", []).append(group)
    return {key: fit_class(groups, sets) for key, groups in classes.items()}


def base_of(rows: Rows, sets: Sets) -> Base:
    """`rows` with the times of the curves of `sets`, without corrections."""
    rows = as_timed(rows, sets)
    table = WorkTable.from_works(rows.works)
    times = KernelModel(scales={}, fitted={"sets": sets}).seconds(table, rows.gpu)
    book = ParameterBook(fitted={"sets": sets}, scales={})
    family, variant, _, kind = table.classes[0]
    start = book.resolve(family, variant, kind, rows.gpu.kernel_name, rows.gpu.arch).values[INDEX["start"]]
    launches = table.launches * start
    busy = times.seconds - launches - times.helper_seconds
    rest = times.helper_seconds + launches + call_overhead(sets, rows)
    return Base(rows.gpu.kernel_name, table, busy, rest, rows.seconds)


class Problem:
    """One class of kernels: knots for its training rows, and each device's rows as coefficients of the tables."""

    def __init__(self, curve: str, bases: Sequence[Base]) -> None:
        self.curve, self.bases = curve, bases
        values: dict[str, list[Array]] = {}
        for base in bases:
            for name, column in coordinates(curve, base.busy, base.table, np.arange(len(base.busy))):
                values.setdefault(name, []).append(column)
        self.knots = {name: _knots(name, np.concatenate(columns)) for name, columns in values.items()}
        self.rules = Monotone(curve, self.knots)
        self.designs = [self._design(base) for base in bases]
        self.rough, self.size = self._penalties()

    @property
    def batched(self) -> bool:
        """Whether some rows are products of several matrices."""
        return any(float(base.table.shape[0].max()) > 1.0 for base in self.bases)

    def _design(self, base: Base) -> Array:
        every = np.arange(len(base.busy))
        values = dict(coordinates(self.curve, base.busy, base.table, every))
        found = Knots([self.knots[name] for name in values]).places(np.array(list(values.values())))
        places = dict(zip(values, zip(*found, strict=True), strict=True))
        matrix = np.zeros((len(every), self.rules.count))
        first = 0
        for (one, other), (rows, columns) in zip(TERMS[self.curve], self.rules.shapes, strict=True):
            (i, x), (j, y) = places[one], places[other]
            for di, dj, share in ((0, 0, (1 - x) * (1 - y)), (0, 1, (1 - x) * y), (1, 0, x * (1 - y)), (1, 1, x * y)):
                matrix[every, first + (i + di) * columns + j + dj] += share
            first += rows * columns
        return matrix

    def _penalties(self) -> tuple[Array, Array]:
        rough = np.zeros((self.rules.count, self.rules.count))
        first = 0
        for rows, columns in self.rules.shapes:
            at = first + np.arange(rows * columns).reshape(rows, columns)
            first += rows * columns
            for lines in (at, at.T):
                for a, b, c in zip(lines[:-2].ravel(), lines[1:-1].ravel(), lines[2:].ravel(), strict=True):
                    d = np.array([1.0, -2.0, 1.0])
                    rough[np.ix_((a, b, c), (a, b, c))] += np.outer(d, d)
        return rough / len(self.rules.shapes), np.eye(self.rules.count)

    def normal(self, number: int, x: Array) -> tuple[Array, Array]:
        """Normal equations of the rows of one device around `x`, large residuals counting linearly."""
        base, design = self.bases[number], self.designs[number]
        g = design @ x
        busy = base.busy * np.exp2(g)
        share = busy / (busy + base.rest)
        error = np.log2(base.seconds / (busy + base.rest))
        weight = 1.0 / np.maximum(np.abs(error), _LINEAR_FROM) / len(g)
        # a step of g by d moves log time by share * d
        target = share * g + error
        scaled = design * (weight * share)[:, None]
        return scaled.T @ (design * share[:, None]), scaled.T @ target

    def penalty(self, strength: float) -> Array:
        """Matrix of the penalty on roughness and size."""
        result: Array = strength * self.rough + 0.1 * strength * self.size
        return result

    def fit(self, members: Sequence[int], strength: float, centre: Array | None = None, free: bool = False) -> Array:
        """Coefficients fitted to these devices together, penalised around `centre`; `free`: no inequalities."""
        x = np.zeros(self.rules.count) if centre is None else centre
        penalty = self.penalty(strength)
        target = np.zeros(len(x)) if centre is None else penalty @ centre
        for _ in range(_ROUNDS // 2 if free else _ROUNDS):
            parts = [self.normal(number, x) for number in members]
            hessian = sum(p[0] for p in parts) / len(parts) + penalty
            gradient = sum(p[1] for p in parts) / len(parts) + target
            x = np.asarray(np.linalg.solve(hessian, gradient) if free else self.rules.solve(hessian, gradient))
        return x

    def as_tables(self, x: Array) -> list[list[list[float]]]:
        """The tables as kernels.json holds them."""
        return [table.tolist() for table in level(self.curve, self.rules.tables(x))]

    def error(self, number: int, x: Array) -> Array:
        """log2(measured / predicted) of the rows of one device."""
        base = self.bases[number]
        result: Array = np.log2(base.seconds / (base.busy * np.exp2(self.designs[number] @ x) + base.rest))
        return result

    def strength(self) -> float:
        """The shared penalty with the smallest median error of devices left out one at a time."""
        if len(self.bases) < 3:
            return STRENGTHS[-1]
        every = range(len(self.bases))
        scores = []
        for strength in STRENGTHS:
            fits = [self.fit([j for j in every if j != i], strength, free=True) for i in every]
            scores.append(np.mean([np.median(np.abs(self.error(i, fits[i]))) for i in every]))
        return STRENGTHS[int(np.argmin(scores))]


def _knots(name: str, values: Array) -> Array:
    """Evenly spaced knots over the middle 99 % of the values."""
    if name == "causal":
        return np.array([0.0, 1.0])
    low, high = np.percentile(values, [0.5, 99.5])
    count = int(np.clip(np.floor((high - low) / _SPAN) + 1, 3, _MOST_KNOTS))
    return np.asarray(np.round(np.linspace(low, max(high, low + 1.0), count), 3))
