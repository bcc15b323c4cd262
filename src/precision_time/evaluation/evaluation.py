"""`evaluate` predicts every row of a table of measured jobs and gives an `Evaluation` of the predictions."""

from __future__ import annotations

import functools
import heapq
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.errors import DataError
from precision_time.evaluation.filters import RowFilters, select
from precision_time.evaluation.fitted_rows import (
    HELD_OUT,
    HELD_OUT_KERNELS,
    HELD_OUT_LAYOUTS,
    KERNELS,
    LAYOUTS,
    STEPS,
    seen_by,
)
from precision_time.evaluation.forecast import Forecast, Question, forecast_all
from precision_time.evaluation.order import Order, counted_order, precision_order
from precision_time.evaluation.rows import (
    GROUPINGS,
    Counted,
    JudgedRow,
    counted,
    counted_statistics,
    divided,
    groups,
    statistics,
)
from precision_time.job.precision import parse_precision
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table, read_table
from precision_time.processes import Workers
from precision_time.report.errors import ErrorStatistics

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from precision_time.anchoring import Anchoring


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A row without a prediction, and the reason."""

    row: Row
    reason: str


MOST_NAMED = 10
"""Ids that a note names."""
MOST_LISTED = 20_000
"""Rows that JSON and HTML list one by one, and that figures draw; statistics are of all, and `--csv` has all."""
ANCHORS = ("all", "other-families", "none")
_PAGES = {STEPS: HELD_OUT, LAYOUTS: HELD_OUT_LAYOUTS, KERNELS: HELD_OUT_KERNELS}
"""Where the errors of the rows of each fit are, held out."""
_FACTORS = {STEPS: "step factors", LAYOUTS: "factors of layouts", KERNELS: "factors on kernels"}
_ANCHORS_TEXT = {
    "all": "Published measurements of similar jobs (anchors) corrected the predictions, never those of the same job; "
    "without them: --anchors none.",
    "other-families": "No anchor of the same model family corrected a prediction.",
    "none": "No measured job (anchor) corrected a prediction.",
}


@dataclass(frozen=True)
class Evaluation:
    """Predicted against measured, in the order of the table.

    `judged` and `unpredicted` together are the chosen rows. With `blind`, the precision assumed for every job, `judged`
    holds the predictions of that blind twin and `aware` the usual predictions of the same rows.
    """

    table: str
    judged: tuple[JudgedRow, ...]
    unpredicted: tuple[Unpredicted, ...]
    warnings: tuple[str, ...] = ()
    blind: str | None = None
    aware: tuple[JudgedRow, ...] = ()
    anchors: str = "all"
    """Measured jobs that corrected the predictions: one of `ANCHORS`."""

    @property
    def n_rows(self) -> int:
        """Number of chosen rows, with and without a prediction."""
        return len(self.judged) + len(self.unpredicted)

    @property
    def seen_by_fit(self) -> int:
        """Number of predicted rows that the shipped factors were fitted to."""
        return sum(j.seen for j in self.judged)

    @functools.cached_property
    def overall(self) -> ErrorStatistics:
        """Error statistics of all predicted rows."""
        return counted_statistics(self.counted)

    @functools.cached_property
    def counted(self) -> list[Counted]:
        """The predicted rows, equal ones as one."""
        return counted(self.judged)

    @functools.cached_property
    def order(self) -> Order:
        """Order of the precisions of all predicted rows."""
        return counted_order(self.counted)

    def by(self, grouping: str, judged: Sequence[JudgedRow] | None = None) -> dict[str, ErrorStatistics]:
        """Error statistics of each group, groups without a prediction included."""
        members = divided(self.counted if judged is None else counted(judged), grouping)
        return {name: counted_statistics(members.get(name, [])) for name in self.groups(grouping)}

    def order_by(self, grouping: str, judged: Sequence[JudgedRow] | None = None) -> dict[str, Order]:
        """The order of precisions in each group; for a precision, over the pairs that involve it."""
        rows = self.counted if judged is None else counted(judged)
        if grouping == "precision":
            return {name: counted_order(rows, name) for name in self.groups(grouping)}
        members = divided(rows, grouping)
        return {name: counted_order(members.get(name, [])) for name in self.groups(grouping)}

    def groups(self, grouping: str) -> list[str]:
        """The groups of a grouping, those without any prediction included."""
        return groups(chain((each.judged.row for each in self.counted), (u.row for u in self.unpredicted)), grouping)

    def worst(self, count: int = 10) -> list[JudgedRow]:
        """The rows with the largest |error|."""
        return heapq.nsmallest(count, self.judged, key=lambda j: -abs(j.error))

    def unpredicted_by_reason(self) -> list[tuple[str, list[Row]]]:
        """Rows by reason, the most frequent first; reasons that differ only in numbers are one group."""
        by_reason: dict[str, list[Unpredicted]] = {}
        for each in self.unpredicted:
            by_reason.setdefault(re.sub(r"\d+", "#", each.reason), []).append(each)
        return [
            (same[0].reason + (" (numbers vary)" if len({u.reason for u in same}) > 1 else ""), [u.row for u in same])
            for same in sorted(by_reason.values(), key=lambda group: -len(group))
        ]

    def assumed(self) -> dict[str, int]:
        """What was assumed where cells are empty, with the number of predicted rows, the most frequent first."""
        times: Counter[str] = Counter()
        for each in self.counted:
            times.update(dict.fromkeys(each.judged.row.assumed, each.times))
        return dict(times.most_common())

    @property
    def ran_without_fitting(self) -> list[str]:
        """Ids of the predicted rows whose memory was predicted not to suffice: all of them were measured, so ran."""
        return [judged.row.id for judged in self.judged if not judged.fits]

    def notes(self) -> list[str]:
        """Sentences that a reader of the errors has to know: anchors, rows seen by the fit, memory, internal errors."""
        notes = [_ANCHORS_TEXT[self.anchors]]
        if self.seen_by_fit:
            kinds = {seen_by(j.row.digest) for j in self.judged if j.seen}
            count = "All" if self.seen_by_fit == len(self.judged) else f"{self.seen_by_fit:,}"
            pages = [page for fit, page in _PAGES.items() if fit in kinds]
            factors = " and ".join(text for fit, text in _FACTORS.items() if fit in kinds) or _FACTORS[STEPS]
            notes.append(
                f"{count} of the {len(self.judged):,} predicted rows were used to fit the "
                f"{factors}, so these errors are not held out; "
                f"held-out errors: {'; '.join(pages) or HELD_OUT}."
            )
        if short := self.ran_without_fitting:
            from precision_time.evaluation.text import first_names

            count = "1 of the predicted rows" if len(short) == 1 else f"{len(short):,} of the predicted rows"
            notes.append(
                f"{count} ran, although memory was predicted not to suffice: {first_names(short, MOST_NAMED)}."
            )
        if bugs := sum(u.reason.startswith("internal error") for u in self.unpredicted):
            notes.append(f"{bugs:,} rows failed with an internal error, a bug of precision-time: please report it.")
        if max(len(self.judged), len(self.unpredicted)) > MOST_LISTED:
            notes.append(
                f"Statistics are of all rows; JSON, HTML and figures list {MOST_LISTED:,} of them, "
                "and --csv has every row."
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; the schema is in docs/evaluate.md."""
        result: dict[str, Any] = {
            "n_rows": self.n_rows,
            "n_predicted": len(self.judged),
            "overall": self.overall.to_dict(),
            "by": {
                grouping: {name: accuracy.to_dict() for name, accuracy in self.by(grouping).items()}
                for grouping in GROUPINGS
            },
            "precision_order": {
                **self.order.to_dict(),
                "by": {
                    grouping: {name: order.to_dict() for name, order in self.order_by(grouping).items()}
                    for grouping in GROUPINGS
                },
            },
            "unpredicted": [{"id": u.row.id, "reason": u.reason} for u in self.unpredicted[:MOST_LISTED]],
            "rows": [_row_dict(j) for j in self.judged[:MOST_LISTED]],
            "ran_without_fitting": self.ran_without_fitting[:MOST_LISTED],
            "seen_by_fit": self.seen_by_fit,
            "table": self.table,
            "anchors": self.anchors,
            "warnings": list(self.warnings),
            "notes": self.notes(),
        }
        if self.blind is not None:
            result["blind"] = {
                "precision": self.blind,
                "aware": statistics(self.aware).to_dict(),
                "aware_by_precision": {n: a.to_dict() for n, a in self.by("precision", self.aware).items()},
                "aware_precision_order": precision_order(self.aware).to_dict(),
            }
        return result

    def text(self, worst: int = 10) -> str:
        """Headline, tables and reasons as text, with `worst` of the rows furthest off."""
        from precision_time.evaluation.text import render

        return render(self, worst)

    def __str__(self) -> str:
        return self.text()


def _row_dict(judged: JudgedRow) -> dict[str, Any]:
    row = judged.row
    return {
        "id": row.id,
        "measured_s": row.measured_s,
        "p10_s": judged.step.p10,
        "p50_s": judged.step.p50,
        "p90_s": judged.step.p90,
        "error": judged.error,
        "gpu": row.gpu,
        "precision": row.precision,
        "model": row.model,
        "gpus": row.gpus,
        "top_terms": judged.top_terms(),
        "family": row.family,
        "framework": row.framework,
        "trust": row.trust,
        "line": row.line,
        "fits": judged.fits,
        "seen_by_fit": judged.seen,
        "assumed": list(row.assumed),
    }


def evaluate(
    table: str | Path | Table,
    *,
    blind: str | None = None,
    anchors: str = "all",
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    **filters: Unpack[RowFilters],
) -> Evaluation:
    """Predict every chosen row of a table and compare the predictions with the measurements.

    `filters` (trust, precision, gpu, model, framework) keep the rows that have one of the values. `anchors` chooses the
    measured jobs that may correct the predictions: "all" as `predict` does, except rows of exactly the same job;
    "other-families"; "none". `blind` replaces the precision of every job. `workers` processes share the work, None for
    as many as are worth starting (the calling script then needs the usual `__main__` guard), or any executor does.
    Equal jobs are predicted once, and `progress(done, total)` counts the distinct ones. Raises `DataError` when the
    table cannot be read, or when a filter or `anchors` matches nothing, `JobError` for an unknown `blind`.
    """
    if isinstance(table, (str, Path)):
        table = read_table(table)
    if anchors not in ANCHORS:
        raise DataError(f"anchors {anchors!r} is unknown; use one of {', '.join(ANCHORS)}")
    label = None if blind is None else parse_precision(blind, "blind").label
    rows = select(table, filters)
    questions = _Questions(anchors)
    asked = [questions.number(row) for row in rows]
    jobs = questions.all
    twins = [] if label is None else [replace(each, job=each.job.replace(precision=label)) for each in jobs]
    forecasts = forecast_all([*jobs, *twins], workers, progress)
    judged: list[JudgedRow] = []
    aware: list[JudgedRow] = []
    unpredicted: list[Unpredicted] = []
    for row, number in zip(rows, asked, strict=True):
        if number is None:
            unpredicted.append(Unpredicted(row, row.reason))
            continue
        usual = forecasts[number]
        if label is None:
            _append(row, usual, judged, unpredicted)
            continue
        twin = forecasts[len(jobs) + number]
        if usual.step is None:  # both or neither, so that the two are judged on the same rows
            unpredicted.append(Unpredicted(row, usual.reason))
        elif _append(row, twin, judged, unpredicted):
            _append(row, usual, aware, unpredicted)
    return Evaluation(table.path.name, tuple(judged), tuple(unpredicted), table.warnings, label, tuple(aware), anchors)


class _Questions:
    """The distinct jobs of a table with the anchors that may correct them; rows that ask the same share a number."""

    def __init__(self, anchors: str) -> None:
        self._anchors = anchors
        self.all: list[Question] = []
        self._by_object: dict[tuple[int, str], int] = {}
        self._by_words: dict[tuple[str, str], int] = {}

    def number(self, row: Row) -> int | None:
        """Place in `all`; None for a row without a job."""
        if row.job is None:
            return None
        place = (id(row.job), row.framework)
        number = self._by_object.get(place)
        if number is None:
            number = self._by_words.setdefault((repr(row.job), row.framework), len(self.all))
            if number == len(self.all):
                self.all.append(Question(row.job, _anchoring(row, self._anchors)))
            self._by_object[place] = number
        return number


def _anchoring(row: Row, anchors: str) -> Anchoring:
    from precision_time.anchoring import Anchoring

    without = {"all": ("key",), "other-families": ("family",)}.get(anchors, ())
    return Anchoring(anchors != "none", without, row.kernels_of or None)


def _append(row: Row, forecast: Forecast, judged: list[JudgedRow], unpredicted: list[Unpredicted]) -> bool:
    """Append the row to `judged` or `unpredicted`; True where there is a prediction."""
    if forecast.step is None:
        unpredicted.append(Unpredicted(row, forecast.reason))
        return False
    seen = bool(seen_by(row.digest))
    judged.append(JudgedRow(row, forecast.step, forecast.breakdown, forecast.fits, seen))
    return True
