"""Which runs to make: Ernest's experiment design (Venkataraman et al., NSDI 2016), A-optimal, and D-optimal beside it.

Every candidate run, a fraction s of the data on m ranks, has a weight l in [0, 1]. With the features f of Ernest's
model, scaled by their column means, the weights minimise tr((sum l f f')^-1), the summed variance of the parameters
(A-optimal), or maximise log det(sum l f f') (D-optimal), while sum l * (s / s_min) / m stays within a budget. Runs
with a weight above 0.3 are made.

Two additions handle grids on which the published form fails. Directions that no candidate distinguishes (1, m and ln m
on two rank counts) are left out of the criterion. Where the runs above 0.3 span fewer directions than the candidates,
the next by weight are added. Neither changes the result on other grids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precision_time.errors import PredictorError

FloatArray = NDArray[np.float64]

CRITERIA = ("A", "D")
BUDGET = 10.0
"""Ernest's default, in runs of the smallest fraction on one rank."""
THRESHOLD = 0.3
"""Ernest's weight above which a run is made."""
RANK_TOLERANCE = 1e-8
"""Singular values below this share of the largest are rounding, not information."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One candidate run: a `fraction` of the data set on so many `ranks`."""

    fraction: float
    ranks: int

    def __post_init__(self) -> None:
        if not self.fraction > 0.0:
            raise PredictorError(f"fraction {self.fraction!r} of a run must be above 0; give a part of the data set")
        if self.ranks < 1:
            raise PredictorError(f"ranks {self.ranks!r} of a run must be at least 1")


@dataclass(frozen=True, slots=True)
class Design:
    """Weights of all candidates and the runs selected.

    `chosen` are positions of the runs to make; `costs` are relative (s / s_min / m). Weighted costs sum to the budget
    at most, while `cost`, of whole runs, may exceed it; `value` is the criterion reached: a trace (A) or log det (D).
    """

    criterion: str
    points: tuple[Point, ...]
    weights: tuple[float, ...]
    costs: tuple[float, ...]
    chosen: tuple[int, ...]
    value: float

    @property
    def runs(self) -> tuple[Point, ...]:
        return tuple(self.points[i] for i in self.chosen)

    @property
    def cost(self) -> float:
        return sum(self.costs[i] for i in self.chosen)


def features(points: Sequence[Point]) -> FloatArray:
    """Ernest's features, one row a point: 1, s/m, m, ln m."""
    s = np.array([p.fraction for p in points], dtype=float)
    m = np.array([p.ranks for p in points], dtype=float)
    return np.column_stack([np.ones_like(m), s / m, m, np.log(m)])


def relative_costs(points: Sequence[Point]) -> FloatArray:
    """(s / s_min) / m of every point."""
    smallest = min(p.fraction for p in points)
    return np.array([p.fraction / smallest / p.ranks for p in points])


def reduced(points: Sequence[Point]) -> FloatArray:
    """Features scaled by their column means, in an orthonormal basis of the directions that the points span.

    Trace of the inverse and determinant do not depend on the basis.
    """
    raw = features(points)
    means = raw.mean(axis=0)
    scaled = raw / np.where(means > 0.0, means, 1.0)
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    kept: FloatArray = scaled @ directions[sizes > RANK_TOLERANCE * sizes[0]].T
    return kept


def _whitened(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(Q, B) of rows = Q U with orthonormal columns and B = U^-T, so that M^-1 = B' (Q' W Q)^-1 B.

    The features are nearly collinear, and their products are too ill-conditioned for a solver; those of Q are not.
    """
    unit, upper = np.linalg.qr(rows)
    return unit, np.linalg.inv(upper).T


def criterion_value(rows: FloatArray, weights: FloatArray, criterion: str) -> float:
    """tr(M^-1) (A; infinite where M is singular) or log det M (D) with M = sum of l f f'."""
    unit, back = _whitened(rows)
    information = (unit.T * weights) @ unit
    if np.linalg.eigvalsh(information)[0] <= 1e-12:
        return float("inf") if criterion == "A" else float("-inf")
    if criterion == "A":
        return float(np.trace(back.T @ np.linalg.solve(information, back)))
    return float(np.linalg.slogdet(information)[1] - 2.0 * np.linalg.slogdet(back)[1])


def design(
    points: Sequence[Point], *, budget: float = BUDGET, criterion: str = "A", threshold: float = THRESHOLD
) -> Design:
    """The runs to make of these candidates. Raises a `PredictorError` for no points or no budget."""
    if criterion not in CRITERIA:
        raise PredictorError(f"criterion {criterion!r} is unknown; use one of {', '.join(CRITERIA)}")
    if not points:
        raise PredictorError("points of a design are missing; give at least one candidate run")
    if not budget > 0.0:
        raise PredictorError(f"budget {budget!r} of a design must be above 0; the published default is {BUDGET:g}")
    rows, costs = reduced(points), relative_costs(points)
    weights = _solve(rows, costs, budget, criterion)
    chosen = _spanning(rows, weights, threshold)
    return Design(
        criterion,
        tuple(points),
        tuple(map(float, weights)),
        tuple(map(float, costs)),
        tuple(chosen),
        criterion_value(rows, weights, criterion),
    )


def _solve(rows: FloatArray, costs: FloatArray, budget: float, criterion: str) -> FloatArray:
    import cvxpy

    unit, back = _whitened(rows)
    weights: Any = cvxpy.Variable(len(rows))
    information = unit.T @ cvxpy.diag(weights) @ unit
    if criterion == "A":
        goal = cvxpy.Minimize(cvxpy.matrix_frac(back / np.linalg.norm(back), information))
    else:
        goal = cvxpy.Maximize(cvxpy.log_det(information))
    problem = cvxpy.Problem(goal, [weights >= 0, weights <= 1, costs @ weights <= budget])
    try:
        problem.solve(solver=cvxpy.CLARABEL)
    except cvxpy.SolverError as error:
        raise PredictorError(
            f"the design of {len(rows)} runs has no solution: {error}; give other candidates"
        ) from error
    if weights.value is None:
        raise PredictorError(f"the design of {len(rows)} runs has no solution ({problem.status}); raise the budget")
    solution = np.clip(np.asarray(weights.value, dtype=float), 0.0, 1.0)
    # An interior-point solution may exceed the budget by the tolerance of the solver.
    within: FloatArray = solution * min(1.0, budget / max(float(costs @ solution), 1e-300))
    return within


def _spanning(rows: FloatArray, weights: FloatArray, threshold: float) -> list[int]:
    """Runs above the threshold by falling weight, and more until they span all directions of the candidates."""
    order = np.argsort(-weights, kind="stable")
    chosen = [int(i) for i in order if weights[i] > threshold]
    rank = _rank(rows[chosen])
    for i in order[len(chosen) :]:
        if rank == rows.shape[1]:
            break
        if (more := _rank(rows[[*chosen, int(i)]])) > rank:
            chosen.append(int(i))
            rank = more
    return chosen


def _rank(rows: FloatArray) -> int:
    return int(np.linalg.matrix_rank(rows, tol=None)) if len(rows) else 0
