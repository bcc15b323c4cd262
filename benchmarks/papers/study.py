"""What a study is: a function `study(context) -> Section` in a module of this package.

It trains a predictor, judges it on rows that it was not fitted to, and returns its section of the report.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from precision_time.bounded_cache import BUDGET, STRUCTURES
from precision_time.predictors.interface import MeasuredJob
from precision_time.report.errors import ErrorStatistics


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the report. Cells are text as it is to be read; the first `left` columns are flush left."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the report: the <svg> element of `report.figure.svg`."""

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A published claim, or a target of this project, beside the figure found; `why` is the reason for a miss.

    `met` is None for a published figure that is only compared.
    """

    what: str
    published: str
    found: str
    met: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One predictor on one set of rows, for the table of all predictors.

    `left_out` says what was held out at a time, `errors` holds "all" and every precision; `measured_s` is the seconds
    of the runs (or operators) that it learned from, `call_s` the seconds of one answer; None where not known.
    """

    predictor: str
    rows: str
    left_out: str
    errors: Mapping[str, ErrorStatistics]
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back. An error of no rows, which is no number, becomes null."""
        found: dict[str, Any] = _finite(asdict(self))
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Section:
        def rows(table: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(row) for row in table["rows"])

        def errors(verdict: Mapping[str, Any]) -> dict[str, ErrorStatistics]:
            return {name: ErrorStatistics(**each) for name, each in verdict["errors"].items()}

        return cls(
            given["key"], given["title"], tuple(given["text"]),
            tuple(Claim(**claim) for claim in given["claims"]),
            tuple(Table(t["caption"], tuple(t["header"]), rows(t), t["left"]) for t in given["tables"]),
            tuple(Figure(**figure) for figure in given["figures"]),
            tuple(Verdict(**{**verdict, "errors": errors(verdict)}) for verdict in given["verdicts"]),
            given["data"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Context:
    """The rows and settings of a study.

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


def _finite(value: Any) -> Any:
    """The value with null for every number that is not finite, which JSON has none of."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_CACHE_BYTES = 1 << 30


@contextlib.contextmanager
def large_caches() -> Iterator[None]:
    """A study asks hundreds of jobs again for each fold, of which the default caches would keep a tenth."""
    usual = [(budget, budget.limit_bytes) for budget in (BUDGET, STRUCTURES)]
    try:
        for budget, _ in usual:
            budget.limit_bytes = _CACHE_BYTES
        yield
    finally:
        for budget, limit_bytes in usual:
            budget.limit_bytes = limit_bytes
