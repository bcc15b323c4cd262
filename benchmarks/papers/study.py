"""What a study is: a function `study(context) -> Section` in a module of this package.

It trains a predictor, judges it on rows that it was not fitted to, and returns its section of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_time.predictors.interface import MeasuredJob


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report. Cells are text as it is to be read; units stand in the header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of the report, as SVG text that stands alone."""

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim or a target of ours beside what was found; `why` says, where it is missed, the likely reason.

    `met` is None where there is nothing to meet: a published figure that is only set beside ours.
    """

    what: str
    published: str
    found: str
    met: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Errors:
    """Of so many predictions, as fractions: mean, median and ninth decile of |predicted / measured - 1|, and the mean
    with its sign."""

    rows: int
    mape: float
    median: float
    p90: float
    signed: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """From predicted / measured - 1. Raises a `ValueError` for none."""
        if not errors:
            raise ValueError("there are no errors to sum up")
        sizes = sorted(abs(e) for e in errors)
        middle, rest = divmod(len(sizes), 2)
        median = sizes[middle] if rest else (sizes[middle - 1] + sizes[middle]) / 2
        place = 0.9 * (len(sizes) - 1)  # as numpy's quantile: between the two nearest
        low = int(place)
        p90 = sizes[low] + (place - low) * (sizes[min(low + 1, len(sizes) - 1)] - sizes[low])
        return cls(len(sizes), sum(sizes) / len(sizes), median, p90, sum(errors) / len(errors))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One predictor on one set of rows, for the table that shows all of them.

    `left_out` says what was kept from it at a time, `errors` holds "all" and every precision; `measured_s` is what the
    runs (or operators) it learnt from took, `call_s` one answer; None where not known.
    """

    predictor: str
    rows: str
    left_out: str
    errors: Mapping[str, Errors]
    measured_s: float | None = None
    call_s: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One predictor's part of the report. `data` holds the figures behind the text, for the JSON."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What a study works on.

    `published` and `large` are the tables of published rows (empty where they are absent: the study then says so and
    does what it can), `runs` the real runs on a machine, `data` the data folder of the repository or None, `seed` the
    seed of all random draws, `quick` True for a test: fewer seeds, rounds and rows. `progress(part, done, of)` may be
    called at any time.
    """

    published: Sequence[MeasuredJob]
    large: Sequence[MeasuredJob]
    runs: Sequence[MeasuredJob]
    data: Path | None = None
    seed: int = 0
    quick: bool = False
    progress: Callable[[str, int, int], None] = lambda part, done, of: None
