"""An evaluation as text: errors by group, order of precisions, the worst rows, the rows without a prediction."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_time.estimate.text import TERM_LABELS, interval_text
from precision_time.evaluation.order import Order, precision_order
from precision_time.evaluation.rows import JudgedRow, statistics
from precision_time.measurements.row import Row
from precision_time.report.errors import ALL_FIELDS, ErrorStatistics, labels, percent
from precision_time.report.table import Table
from precision_time.units import human_seconds

if TYPE_CHECKING:
    from precision_time.evaluation.evaluation import Evaluation

TITLES = {
    "precision": "by precision",
    "gpu": "by GPU",
    "family": "by model family",
    "framework": "by framework",
    "gpus": "by number of GPUs",
    "trust": "by trust",
}
"""Groupings of the text and HTML tables; JSON has those by model too."""
LEGEND = (
    "error = predicted / measured - 1. MAPE, median, P90, max: of |error|; signed: mean error, above 0 where "
    "predictions are too slow; ratio: geometric mean of predicted / measured; pairs: of precisions of one job, in "
    "order: predicted in the measured order."
)
_WIDTH = 110


def render(evaluation: Evaluation, worst: int = 10) -> str:
    """Headline, notes, error tables, `worst` of the rows furthest off, assumptions and rows without a prediction."""
    parts = [_fill(headline(evaluation)), *map(_fill, evaluation.notes())]
    if evaluation.judged:
        if evaluation.blind is not None:
            parts.append(blind_table(evaluation).text())
        parts.append(f"{accuracy_table(evaluation).text()}\n{_fill(LEGEND)}")
        parts.append(_fill(order_sentence(evaluation.order)))
        if rows := evaluation.worst(worst):
            parts.append("\n".join([f"furthest off ({len(rows)})", *map(_worst_text, rows)]))
        if assumed := assumed_sentence(evaluation):
            parts.append(_fill(assumed))
    if evaluation.unpredicted:
        lines = [f"no prediction for {_count(len(evaluation.unpredicted), 'row')}"]
        lines += [_hanging(reason_text(*reason), "  ") for reason in evaluation.unpredicted_by_reason()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def headline(evaluation: Evaluation) -> str:
    """Rows predicted, mean and median error, coverage, as two sentences."""
    overall, total = evaluation.overall, evaluation.n_rows
    if overall.n == 0:
        return f"{evaluation.table}: none of {_count(total, 'measured job')} could be predicted."
    who = f"all {total:,}" if overall.n == total else f"{overall.n:,} of {total:,}"
    how = f", every job taken as {evaluation.blind}" if evaluation.blind else ""
    return (
        f"{evaluation.table}: {who} measured jobs predicted{how}. They are off by {percent(overall.mape)} on average, "
        f"half of them by less than {percent(overall.median_ape)}; the P10-P90 interval holds "
        f"{percent(overall.coverage_p10_p90, 0)} of them (80% is meant)."
    )


def accuracy_table(evaluation: Evaluation) -> Table:
    """Errors and order of precisions of all rows, then of each group of each grouping below its title."""
    rows = [_accuracy_row("all rows", evaluation.overall, evaluation.order)]
    for grouping, title in TITLES.items():
        orders = evaluation.order_by(grouping)
        rows.append([title, *[""] * (len(ALL_FIELDS) + 2)])
        rows += [_accuracy_row(f"  {name}", errors, orders[name]) for name, errors in evaluation.by(grouping).items()]
    return Table(["", *labels(), "pairs", "in order"], rows)


def _accuracy_row(name: str, errors: ErrorStatistics, order: Order) -> list[str]:
    return [name, *errors.cells(), f"{order.n_pairs:,}" if order.n_pairs else "-", percent(order.pairs_right, 0)]


def blind_table(evaluation: Evaluation) -> Table:
    """The usual prediction beside its blind twin on the same rows: overall, then by precision."""
    fields = ("mape", "median_ape", "signed_mean")
    columns = ["", "rows"]
    for label in (*labels(fields), "in order"):
        columns += [f"{label} aware", "blind"]

    def line(
        name: str, aware: ErrorStatistics, blind: ErrorStatistics, aware_order: Order, blind_order: Order
    ) -> list[str]:
        cells = [cell for pair in zip(aware.cells(fields), blind.cells(fields), strict=True) for cell in pair]
        return [name, f"{blind.n:,}", *cells, *(percent(o.pairs_right, 0) for o in (aware_order, blind_order))]

    aware, blind = evaluation.by("precision", evaluation.aware), evaluation.by("precision")
    aware_order, blind_order = evaluation.order_by("precision", evaluation.aware), evaluation.order_by("precision")
    overall = statistics(evaluation.aware)
    rows = [line("all rows", overall, evaluation.overall, precision_order(evaluation.aware), evaluation.order)]
    rows += [line(f"  {name}", aware[name], blind[name], aware_order[name], blind_order[name]) for name in blind]
    return Table(columns, rows)


def order_sentence(order: Order) -> str:
    """Number of jobs and pairs, share in the measured order, Kendall tau."""
    if not order.n_jobs:
        return "Order of precisions: no job was measured in more than one precision."
    return (
        f"Order of precisions: {_count(order.n_jobs, 'job')} measured in more than one precision, "
        f"{_count(order.n_pairs, 'pair')}; {percent(order.pairs_right)} are predicted in the measured order "
        f"(Kendall tau {order.kendall_tau:.2f}, by seconds per sample)."
    )


def assumed_sentence(evaluation: Evaluation) -> str:
    """What was assumed where cells are empty, with the number of rows; "" when nothing was."""
    assumptions = [f"{text} ({count:,})" for text, count in evaluation.assumed().items()]
    return f"Assumed where cells are empty (rows): {', '.join(assumptions)}." if assumptions else ""


def reason_text(reason: str, rows: Sequence[Row]) -> str:
    """A reason with the number of its rows and the ids of the first ones."""
    return f"{len(rows):,} x {reason} ({first_names([row.id for row in rows])})"


def terms_text(judged: JudgedRow) -> str:
    """The largest terms of the predicted step: "backward 6.13 s, forward 3.2 s"."""
    return ", ".join(f"{TERM_LABELS.get(name, name)} {human_seconds(s)}" for name, s in judged.top_terms().items())


def first_names(names: Sequence[str], count: int = 3) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:count]) + (f" and {len(names) - count:,} more" if len(names) > count else "")


def _worst_text(judged: JudgedRow) -> str:
    row = judged.row
    place = f"{row.precision}, {row.gpus} x {row.gpu}" + (f", trust {row.trust}" if row.trust else "")
    return (
        f"  {row.id}: {percent(judged.error, sign='+')}\n"
        f"    measured {human_seconds(row.measured_s)}, predicted {interval_text(judged.step)}; {place}\n"
        f"    {terms_text(judged)}"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _fill(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _hanging(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent * 2,
        break_on_hyphens=False,
        break_long_words=False,
    )
