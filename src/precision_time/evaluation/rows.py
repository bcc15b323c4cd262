"""Measured rows with their predictions, and the groups that errors are reported by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

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
    breakdown: Mapping[str, float]
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


@dataclass(frozen=True, slots=True)
class Counted:
    """Equal rows of a table as one, and how many they are."""

    judged: JudgedRow
    times: int = 1


def counted(judged: Iterable[JudgedRow]) -> list[Counted]:
    """Rows of equal cells (which share their objects, see `read_table`) as one."""
    first: dict[tuple[object, ...], JudgedRow] = {}
    times: Counter[tuple[object, ...]] = Counter()
    for each in judged:
        same = (id(each.row.setting), id(each.step), *_grouped(each.row))
        times[same] += 1
        first.setdefault(same, each)
    return [Counted(first[same], number) for same, number in times.items()]


_grouped = attrgetter("measured_s", "precision", "gpu", "model", "family", "framework", "gpus", "trust")


def statistics(judged: Iterable[JudgedRow]) -> ErrorStatistics:
    """Error statistics and coverage of the rows."""
    return counted_statistics(counted(judged))


def counted_statistics(rows: Sequence[Counted]) -> ErrorStatistics:
    """The same of rows that are counted."""
    times = [each.times for each in rows]
    errors = np.repeat(np.array([each.judged.error for each in rows], dtype=float), times)
    return ErrorStatistics.of(errors, np.repeat(np.array([each.judged.inside for each in rows], dtype=bool), times))


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


def divided(rows: Iterable[Counted], grouping: str) -> dict[str, list[Counted]]:
    """The rows of each group."""
    members: dict[str, list[Counted]] = {}
    for each in rows:
        members.setdefault(group_of(each.judged.row, grouping), []).append(each)
    return members


def groups(rows: Iterable[Row], grouping: str) -> list[str]:
    """The groups of a grouping in the order to print them: numbers by size, names by alphabet, the unknown last."""
    names = {group_of(row, grouping) for row in rows}
    return sorted(names, key=lambda name: (name == UNKNOWN, int(name) if grouping == "gpus" else 0, name))
