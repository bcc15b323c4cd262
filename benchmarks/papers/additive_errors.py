"""Errors of several ways to predict the same measured jobs, by precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.study import Table
from precision_time.job.precision import PRECISIONS
from precision_time.predictors.interface import MeasuredJob


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured job and what each way says of it, in seconds; a way that cannot is missing."""

    measured: MeasuredJob
    seconds: dict[str, float]

    def error(self, way: str) -> float:
        """Predicted over measured, minus one."""
        return self.seconds[way] / self.measured.seconds - 1.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Over `count` rows, in per cent: mean, median and ninth decile of |error|, and the signed mean."""

    count: int
    mape: float = float("nan")
    median: float = float("nan")
    p90: float = float("nan")
    signed: float = float("nan")

    @property
    def cells(self) -> tuple[str, str, str, str]:
        if not self.count:
            return ("-", "-", "-", "-")
        return (f"{self.mape:.1f} %", f"{self.median:.1f} %", f"{self.p90:.1f} %", f"{self.signed:+.1f} %")

    @property
    def data(self) -> Mapping[str, float | int | None]:
        if not self.count:
            return {"count": 0}
        return {"count": self.count, "mape": self.mape, "median": self.median, "p90": self.p90, "signed": self.signed}


def accuracy(judged: Sequence[Judged], way: str) -> Accuracy:
    """Of the rows that the way can predict."""
    errors = np.array([100.0 * each.error(way) for each in judged if way in each.seconds])
    if not len(errors):
        return Accuracy(0)
    sizes = np.abs(errors)
    return Accuracy(
        len(errors), float(sizes.mean()), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(errors.mean())
    )  # fmt: skip


def mape(judged: Sequence[Judged], way: str) -> float:
    """Mean |error| in per cent; 0 where the way predicts none of the rows."""
    found = accuracy(judged, way)
    return found.mape if found.count else 0.0


def precisions_of(judged: Sequence[Judged]) -> list[str]:
    """Those of the rows, in the project's order."""
    names = {each.measured.precision for each in judged}
    return [*(name for name in PRECISIONS if name in names), *sorted(names - set(PRECISIONS))]


def accuracy_table(title: str, judged: Sequence[Judged], ways: Sequence[str]) -> Table:
    """One line for each way and precision."""
    rows = []
    for name in ("all", *precisions_of(judged)):
        these = [each for each in judged if name in ("all", each.measured.precision)]
        for way in ways:
            found = accuracy(these, way)
            rows.append((name, way, str(found.count), *found.cells))
    header = ("precision", "predictor", "rows", "MAPE", "median", "P90", "signed mean")
    return Table(f"Errors on {title}", header, tuple(rows))


def twin_table(title: str, judged: Sequence[Judged], aware: str) -> Table:
    """MAPE of every blind twin by the precision it is asked about; beside them the model that sees precision."""
    names = precisions_of(judged)
    rows = []
    for asked in names:
        these = [each for each in judged if each.measured.precision == asked]
        cells = []
        for way in (aware, *(f"blind {name}" for name in names)):
            found = accuracy(these, way)
            few = f" ({found.count} rows)" if 0 < found.count < len(these) else ""
            cells.append(found.cells[0] + few)
        rows.append((asked, str(len(these)), *cells))
    return Table(
        f"Precision-blind twins on {title}: MAPE by the precision asked about, profiled in one precision each",
        ("asked about", "rows", "precision-aware", *(f"profiled in {name}" for name in names)),
        tuple(rows),
    )
