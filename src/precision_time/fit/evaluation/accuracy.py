"""How far predictions lie from measurements: the errors of a set of rows in eight numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from precision_time.estimate.interval import Interval
from precision_time.measurements.row import Row


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured row with its prediction. `seen` says that the shipped factors were fitted to this row too."""

    row: Row
    step: Interval
    breakdown: dict[str, float]
    fits: bool
    seen: bool

    @property
    def error(self) -> float:
        """predicted / measured - 1: above 0 is too slow a prediction."""
        return self.step.p50 / self.row.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the P10-P90 interval."""
        return self.step.p10 <= self.row.measured_s <= self.step.p90

    def top_terms(self, count: int = 5) -> dict[str, float]:
        """The largest terms of the predicted step in seconds, none of them zero (but for rounding)."""
        terms = sorted(self.breakdown.items(), key=lambda item: -item[1])
        return {name: seconds for name, seconds in terms[:count] if seconds > 1e-6 * self.step.p50}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of `n` rows as fractions, error = predicted / measured - 1; None where there is no row.

    mape, median_ape, p90_ape, max_ape    mean, median, ninetieth percentile and largest of |error|
    signed_mean                           mean of error: above 0 where predictions are too slow
    coverage_p10_p90                      share of rows whose measurement lies between P10 and P90
    geo_mean_ratio                        geometric mean of predicted / measured
    """

    n: int
    mape: float | None = None
    median_ape: float | None = None
    signed_mean: float | None = None
    p90_ape: float | None = None
    max_ape: float | None = None
    coverage_p10_p90: float | None = None
    geo_mean_ratio: float | None = None

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Accuracy:
        if not judged:
            return cls(0)
        error = np.array([j.error for j in judged])
        size = np.abs(error)
        return cls(
            n=len(judged),
            mape=float(size.mean()),
            median_ape=float(np.median(size)),
            signed_mean=float(error.mean()),
            p90_ape=float(np.quantile(size, 0.9)),
            max_ape=float(size.max()),
            coverage_p10_p90=float(np.mean([j.inside for j in judged])),
            geo_mean_ratio=math.exp(float(np.log1p(error).mean())),
        )

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


GROUPINGS: dict[str, Callable[[Row], str]] = {
    "precision": lambda row: row.precision,
    "gpu": lambda row: row.gpu,
    "model": lambda row: row.model,
    "family": lambda row: row.family,
    "framework": lambda row: row.framework,
    "gpus": lambda row: str(row.gpus),
    "trust": lambda row: row.trust,
}
"""What errors are reported by: name -> value of a row."""
UNSAID = "unknown"
"""Group of the rows whose cell is empty."""


def group_of(row: Row, grouping: str) -> str:
    return GROUPINGS[grouping](row) or UNSAID


def groups(rows: Iterable[Row], grouping: str) -> list[str]:
    """The values of a grouping in the order to print them: numbers by size, words by alphabet, the unknown last."""
    found = {group_of(row, grouping) for row in rows}
    return sorted(found, key=lambda name: (name == UNSAID, int(name) if grouping == "gpus" else 0, name))
