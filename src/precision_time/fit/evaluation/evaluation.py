"""`evaluate`: predict every row of a table of measured jobs and hold the predictions against the measurements."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.errors import DataError
from precision_time.fit.evaluation.accuracy import GROUPINGS, Accuracy, Judged, group_of, groups
from precision_time.fit.evaluation.fitted_rows import HELD_OUT, HELD_OUT_LAYOUTS, LAYOUTS, STEPS, seen_by
from precision_time.fit.evaluation.forecast import Forecast, Question, forecast_all
from precision_time.fit.evaluation.order import Order, precision_order
from precision_time.fit.evaluation.select import select
from precision_time.job.precision import parse_precision
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table, read_table

if TYPE_CHECKING:
    from precision_time.prediction import Anchoring


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A row without a prediction, and why."""

    row: Row
    reason: str


ANCHORS = ("all", "other-families", "none")
_ANCHORS_TEXT = {
    "all": "Published measurements of similar jobs (anchors) corrected the predictions, never those of the same job; "
    "without them: --anchors none.",
    "other-families": "No anchor of the same model family corrected a prediction.",
    "none": "No measured job (anchor) corrected a prediction.",
}


@dataclass(frozen=True)
class Evaluation:
    """Predicted against measured, in the order of the table.

    `judged` and `unpredicted` together are the rows chosen. With `blind`, the precision that was assumed for all of
    them, `judged` is what that twin predicts and `aware` what the usual prediction says of the same rows.
    """

    table: str
    judged: tuple[Judged, ...]
    unpredicted: tuple[Unpredicted, ...]
    warnings: tuple[str, ...] = ()
    blind: str | None = None
    aware: tuple[Judged, ...] = ()
    anchors: str = "all"
    """Which measured jobs corrected the predictions: one of `ANCHORS`."""

    @property
    def n_rows(self) -> int:
        return len(self.judged) + len(self.unpredicted)

    @property
    def seen_by_fit(self) -> int:
        """Predicted rows that the shipped step factors were fitted to."""
        return sum(j.seen for j in self.judged)

    @functools.cached_property
    def overall(self) -> Accuracy:
        return Accuracy.of(self.judged)

    @functools.cached_property
    def order(self) -> Order:
        return precision_order(self.judged)

    def by(self, grouping: str, judged: Sequence[Judged] | None = None) -> dict[str, Accuracy]:
        """The accuracy of each group, those without any prediction included."""
        judged = self.judged if judged is None else judged
        return {
            name: Accuracy.of([j for j in judged if group_of(j.row, grouping) == name])
            for name in self.groups(grouping)
        }

    def order_by(self, grouping: str, judged: Sequence[Judged] | None = None) -> dict[str, Order]:
        """The order of precisions in each group; for precisions, of the pairs that involve it."""
        judged = self.judged if judged is None else judged
        if grouping == "precision":
            return {name: precision_order(judged, name) for name in self.groups(grouping)}
        return {
            name: precision_order(j for j in judged if group_of(j.row, grouping) == name)
            for name in self.groups(grouping)
        }

    def groups(self, grouping: str) -> list[str]:
        return groups([*(j.row for j in self.judged), *(u.row for u in self.unpredicted)], grouping)

    def worst(self, count: int = 10) -> list[Judged]:
        """The rows with the largest |error|."""
        return sorted(self.judged, key=lambda j: -abs(j.error))[:count]

    def unpredicted_by_reason(self) -> list[tuple[str, list[Row]]]:
        """Rows grouped by reason, the most frequent first; reasons that differ only in numbers stand together."""
        found: dict[str, list[Unpredicted]] = {}
        for each in self.unpredicted:
            found.setdefault(re.sub(r"\d+", "#", each.reason), []).append(each)
        return [
            (same[0].reason + (" (numbers vary)" if len({u.reason for u in same}) > 1 else ""), [u.row for u in same])
            for same in sorted(found.values(), key=lambda s: -len(s))
        ]

    def assumed(self) -> dict[str, int]:
        """What was assumed where rows are silent, with the number of predicted rows, the most frequent first."""
        found: dict[str, int] = {}
        for j in self.judged:
            for word in j.row.assumed:
                found[word] = found.get(word, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def notes(self) -> list[str]:
        """What a reader of the figures has to know."""
        said = [_ANCHORS_TEXT[self.anchors]]
        if self.seen_by_fit:
            kinds = {seen_by(j.row.digest) for j in self.judged if j.seen}
            who = "All" if self.seen_by_fit == len(self.judged) else f"{self.seen_by_fit:,}"
            where = [page for fit, page in ((STEPS, HELD_OUT), (LAYOUTS, HELD_OUT_LAYOUTS)) if fit in kinds]
            said.append(
                f"{who} of the {len(self.judged):,} predicted rows were used to fit the "
                f"{'factors of layouts' if kinds == {LAYOUTS} else 'step factors'}, so this is not a held-out figure; "
                f"held out: {'; '.join(where) or HELD_OUT}."
            )
        if short := sum(not j.fits for j in self.judged):
            said.append(f"{short:,} of the predicted rows ran, although memory was predicted not to suffice.")
        if bugs := sum(u.reason.startswith("internal error") for u in self.unpredicted):
            said.append(f"{bugs:,} rows failed with an internal error, a bug of precision-time: please report it.")
        return said

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
            "unpredicted": [{"id": u.row.id, "reason": u.reason} for u in self.unpredicted],
            "rows": [_row_dict(j) for j in self.judged],
            "seen_by_fit": self.seen_by_fit,
            "table": self.table,
            "anchors": self.anchors,
            "warnings": list(self.warnings),
            "notes": self.notes(),
        }
        if self.blind is not None:
            result["blind"] = {
                "precision": self.blind,
                "aware": Accuracy.of(self.aware).to_dict(),
                "aware_by_precision": {n: a.to_dict() for n, a in self.by("precision", self.aware).items()},
                "aware_precision_order": precision_order(self.aware).to_dict(),
            }
        return result

    def text(self, worst: int = 10) -> str:
        """The whole answer for people, with so many of the worst rows."""
        from precision_time.fit.evaluation.text import render

        return render(self, worst)

    def __str__(self) -> str:
        return self.text()


def _row_dict(judged: Judged) -> dict[str, Any]:
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
    trust: Iterable[str] = (),
    precision: Iterable[str] = (),
    gpu: Iterable[str] = (),
    model: Iterable[str] = (),
    framework: Iterable[str] = (),
    blind: str | None = None,
    anchors: str = "all",
    workers: int | None = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Predict every chosen row of a table and judge the predictions.

    `anchors` says which measured jobs may correct the predictions: "all" as `predict` does, but never rows of exactly
    the same job; "other-families", or "none". The filters keep rows with one of the values; `blind` replaces every
    job's precision by this one. `workers` processes share the work, None for as many as pay (then the calling script
    needs the usual `__main__` guard).
    Raises `DataError` when the table cannot be read or a filter or `anchors` names nothing, `JobError` for an unknown
    `blind`.
    """
    if isinstance(table, (str, Path)):
        table = read_table(table)
    if anchors not in ANCHORS:
        raise DataError(f"anchors {anchors!r} is unknown; use one of {', '.join(ANCHORS)}")
    label = None if blind is None else parse_precision(blind, "blind").label
    wanted = {"trust": trust, "precision": precision, "gpu": gpu, "model": model, "framework": framework}
    rows = select(table, {word: list(values) for word, values in wanted.items()})
    jobs = [Question(row.job, _anchoring(row, anchors)) for row in rows if row.job is not None]
    twins = [] if label is None else [replace(each, job=each.job.replace(precision=label)) for each in jobs]
    forecasts = forecast_all([*jobs, *twins], workers, progress)
    own = iter(forecasts[: len(jobs)])
    other = iter(forecasts[len(jobs) :])
    judged: list[Judged] = []
    aware: list[Judged] = []
    unpredicted: list[Unpredicted] = []
    for row in rows:
        if row.job is None:
            unpredicted.append(Unpredicted(row, row.reason))
            continue
        usual = next(own)
        if label is None:
            _enter(row, usual, judged, unpredicted)
            continue
        twin = next(other)
        if usual.step is None:  # both or neither, so that the two are judged on the same rows
            unpredicted.append(Unpredicted(row, usual.reason))
        elif _enter(row, twin, judged, unpredicted):
            _enter(row, usual, aware, unpredicted)
    return Evaluation(table.path.name, tuple(judged), tuple(unpredicted), table.warnings, label, tuple(aware), anchors)


def _anchoring(row: Row, anchors: str) -> Anchoring:
    from precision_time.prediction import Anchoring

    without = {"all": ("key",), "other-families": ("family",)}.get(anchors, ())
    return Anchoring(anchors != "none", without, row.framework or "pytorch", row.source or "the table")


def _enter(row: Row, forecast: Forecast, judged: list[Judged], unpredicted: list[Unpredicted]) -> bool:
    """File the row with its forecast under one of the two; whether there was a prediction."""
    if forecast.step is None:
        unpredicted.append(Unpredicted(row, forecast.reason))
        return False
    seen = bool(seen_by(row.digest))
    judged.append(Judged(row, forecast.step, dict(forecast.breakdown), forecast.fits, seen))
    return True
