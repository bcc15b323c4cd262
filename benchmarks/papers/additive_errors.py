"""Errors of several ways to predict the same measured jobs, by precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.papers.judging import precisions_in_order
from benchmarks.papers.study import Table
from precision_time.predictors.interface import MeasuredJob
from precision_time.report.errors import ErrorStatistics, labels, percent

FIELDS = ("n", "mape", "median_ape", "p90_ape", "signed_mean")


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured job and the seconds that each way of predicting gives; a way that cannot predict it is missing."""

    measured: MeasuredJob
    seconds: dict[str, float]

    def error(self, way: str) -> float:
        """Predicted / measured - 1."""
        return self.seconds[way] / self.measured.seconds - 1.0


def accuracy(judged: Sequence[Judged], way: str, precision: str = "all") -> ErrorStatistics:
    """Of the rows of a precision ("all": any) that this way can predict."""
    return ErrorStatistics.of(
        [each.error(way) for each in judged if way in each.seconds and precision in ("all", each.measured.precision)]
    )


def mape(judged: Sequence[Judged], way: str, precision: str = "all") -> float:
    """Mean absolute error as a fraction; nan where this way predicts none of the rows."""
    value = accuracy(judged, way, precision).mape
    return math.nan if value is None else value


def precisions_of(judged: Sequence[Judged]) -> list[str]:
    """Those of the rows, in the project's order."""
    return precisions_in_order([each.measured for each in judged])


def accuracy_table(title: str, judged: Sequence[Judged], ways: Sequence[str]) -> Table:
    """One row for each precision and way."""
    rows = [
        (precision, way, *accuracy(judged, way, precision).cells(FIELDS))
        for precision in ("all", *precisions_of(judged))
        for way in ways
    ]
    return Table(f"Errors on {title}", ("precision", "predictor", *labels(FIELDS)), tuple(rows), left=2)


def twin_table(title: str, judged: Sequence[Judged], aware: str) -> Table:
    """MAPE of every precision-blind twin by the precision asked about, beside the precision-aware model."""
    names = precisions_of(judged)
    rows = []
    for asked in names:
        count = sum(each.measured.precision == asked for each in judged)
        cells = []
        for way in (aware, *(f"blind {name}" for name in names)):
            statistics = accuracy(judged, way, asked)
            cells.append(percent(statistics.mape) + (f" ({statistics.n} rows)" if 0 < statistics.n < count else ""))
        rows.append((asked, str(count), *cells))
    return Table(
        f"Precision-blind twins on {title}: MAPE by the precision asked about, profiled in one precision each",
        ("asked about", "rows", "precision-aware", *(f"profiled in {name}" for name in names)),
        tuple(rows),
    )
