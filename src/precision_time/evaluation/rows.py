"""Measured rows with their predictions, and the groups that errors are reported by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from precision_time.estimate.interval import Interval
from precision_time.measurements.row import Row
from precision_time.report.errors import ErrorStatistics


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A measured row with its predicted step in seconds, the seconds of each term, and whether memory suffices.

    `seen` says that the shipped factors were fitted to this row.
    """

    row: Row
    step: Interval
    breakdown: dict[str, float]
    fits: bool
    seen: bool

    @property
    def error(self) -> float:
        """predicted / measured - 1, positive where the prediction is too slow."""
        return self.step.p50 / self.row.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the P10-P90 interval."""
        return self.step.p10 <= self.row.measured_s <= self.step.p90

    def top_terms(self, count: int = 5) -> dict[str, float]:
        """Seconds of the largest terms of the predicted step, without those that are zero but for rounding."""
        terms = sorted(self.breakdown.items(), key=lambda item: -item[1])
        return {name: seconds for name, seconds in terms[:count] if seconds > 1e-6 * self.step.p50}


def statistics(judged: Sequence[JudgedRow]) -> ErrorStatistics:
    """Error statistics and coverage of the rows."""
    return ErrorStatistics.of([j.error for j in judged], [j.inside for j in judged])


GROUPINGS: dict[str, Callable[[Row], str]] = {
    "precision": lambda row: row.precision,
    "gpu": lambda row: row.gpu,
    "model": lambda row: row.model,
    "family": lambda row: row.family,
    "framework": lambda row: row.framework,
    "gpus": lambda row: str(row.gpus),
    "trust": lambda row: row.trust,
}
"""Groupings that errors are reported by: name -> group of a row."""
UNKNOWN = "unknown"
"""Group of the rows whose cell is empty."""


def group_of(row: Row, grouping: str) -> str:
    """The group of a row in a grouping."""
    return GROUPINGS[grouping](row) or UNKNOWN


def groups(rows: Iterable[Row], grouping: str) -> list[str]:
    """The groups of a grouping in the order to print them: numbers by size, names by alphabet, the unknown last."""
    names = {group_of(row, grouping) for row in rows}
    return sorted(names, key=lambda name: (name == UNKNOWN, int(name) if grouping == "gpus" else 0, name))
