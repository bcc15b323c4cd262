"""An evaluation as text: the errors by group, the order of precisions, the worst rows, the rows without prediction."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from precision_time.estimate.text import interval_text
from precision_time.fit.evaluation.accuracy import Accuracy, Judged
from precision_time.fit.evaluation.evaluation import Evaluation
from precision_time.fit.evaluation.order import Order, precision_order
from precision_time.measurements.row import Row
from precision_time.text_table import format_table
from precision_time.units import human_seconds

TITLES = {
    "precision": "by precision",
    "gpu": "by GPU",
    "family": "by model family",
    "framework": "by framework",
    "gpus": "by number of GPUs",
    "trust": "by trust",
}
"""The groupings that people get to see; JSON has the single models too."""
HEADS = ("rows", "MAPE", "median", "signed", "P90", "max", "in P10-P90", "ratio", "pairs", "in order")
LEGEND = (
    "error = predicted / measured - 1. MAPE, median, P90, max: of its size; signed: its mean, above 0 where "
    "predictions are too slow; ratio: geometric mean of predicted / measured; pairs: of precisions of one job, in "
    "order: predicted in the measured order."
)
_WIDTH = 110


def render(evaluation: Evaluation, worst: int = 10) -> str:
    """The whole answer."""
    parts = [_fill(headline(evaluation)), *map(_fill, evaluation.notes())]
    if evaluation.judged:
        if evaluation.blind is not None:
            parts.append(format_table(*blind_rows(evaluation)))
        heads, rows = accuracy_rows(evaluation)
        parts.append(f"{format_table(heads, rows)}\n{_fill(LEGEND)}")
        parts.append(_fill(order_sentence(evaluation.order)))
        if worst and (rows_ := evaluation.worst(worst)):
            parts.append("\n".join([f"furthest off ({len(rows_)})", *map(_worst_text, rows_)]))
        if assumed := assumed_sentence(evaluation):
            parts.append(_fill(assumed))
    if evaluation.unpredicted:
        lines = [f"no prediction for {_count(len(evaluation.unpredicted), 'row')}"]
        lines += [_hanging(reason_text(*each), "  ") for each in evaluation.unpredicted_by_reason()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def headline(evaluation: Evaluation) -> str:
    """The answer in a sentence."""
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


def accuracy_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Heads and cells: all rows, then each group of each grouping below its title."""
    rows = [_accuracy_row("all rows", evaluation.overall, evaluation.order)]
    for grouping, title in TITLES.items():
        orders = evaluation.order_by(grouping)
        rows.append([title, *[""] * len(HEADS)])
        rows += [_accuracy_row(f"  {n}", a, orders[n]) for n, a in evaluation.by(grouping).items()]
    return ["", *HEADS], rows


def _accuracy_row(name: str, accuracy: Accuracy, order: Order) -> list[str]:
    sizes = [percent(v) for v in (accuracy.mape, accuracy.median_ape)]
    sizes += [percent(accuracy.signed_mean, sign="+"), percent(accuracy.p90_ape), percent(accuracy.max_ape)]
    ratio = "-" if accuracy.geo_mean_ratio is None else f"{accuracy.geo_mean_ratio:.2f}"
    return [
        name, f"{accuracy.n:,}", *sizes, percent(accuracy.coverage_p10_p90, 0), ratio,
        f"{order.n_pairs:,}" if order.n_pairs else "-", percent(order.pairs_right, 0),
    ]  # fmt: skip


def blind_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the usual prediction beside its blind twin on the same rows: overall, then by precision."""
    heads = ["", "rows"]
    for what in ("MAPE", "median", "signed", "in order"):
        heads += [f"{what} aware", "blind"]

    def line(name: str, aware: Accuracy, blind: Accuracy, orders: tuple[Order, Order]) -> list[str]:
        cells = [percent(v) for a in ("mape", "median_ape") for v in (getattr(aware, a), getattr(blind, a))]
        cells += [percent(v.signed_mean, sign="+") for v in (aware, blind)]
        return [name, f"{blind.n:,}", *cells, *(percent(o.pairs_right, 0) for o in orders)]

    aware, blind = evaluation.by("precision", evaluation.aware), evaluation.by("precision")
    aware_order, blind_order = evaluation.order_by("precision", evaluation.aware), evaluation.order_by("precision")
    every = Accuracy.of(evaluation.aware)
    rows = [line("all rows", every, evaluation.overall, (precision_order(evaluation.aware), evaluation.order))]
    rows += [line(f"  {n}", aware[n], blind[n], (aware_order[n], blind_order[n])) for n in blind]
    return heads, rows


def order_sentence(order: Order) -> str:
    if not order.n_jobs:
        return "Order of precisions: no job was measured in more than one precision."
    return (
        f"Order of precisions: {_count(order.n_jobs, 'job')} measured in more than one precision, "
        f"{_count(order.n_pairs, 'pair')}; {percent(order.pairs_right)} are predicted in the measured order "
        f"(Kendall tau {order.kendall_tau:.2f}, by seconds per sample)."
    )


def assumed_sentence(evaluation: Evaluation) -> str:
    """What was assumed where rows are silent; "" when nothing was."""
    words = [f"{word} ({count:,})" for word, count in evaluation.assumed().items()]
    return f"Assumed where the table is silent (rows): {', '.join(words)}." if words else ""


def reason_text(reason: str, rows: Sequence[Row]) -> str:
    """A reason with the number of its rows and some of them."""
    return f"{len(rows):,} x {reason} ({some(row.id for row in rows)})"


def terms_text(judged: Judged) -> str:
    """Where the predicted step goes: "backward 6.13 s, forward 3.2 s"."""
    return ", ".join(f"{name.replace('_', ' ')} {human_seconds(s)}" for name, s in judged.top_terms().items())


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    """ "12.5%"; beyond 10,000 % only the size matters."""
    if value is None:
        return "-"
    return f"{value:{sign},.{digits}%}" if abs(value) < 100 else f"{100 * value:{sign}.1e}%"


def some(names: Iterable[str], count: int = 3) -> str:
    known = list(names)
    return ", ".join(known[:count]) + (f" and {len(known) - count:,} more" if len(known) > count else "")


def _worst_text(judged: Judged) -> str:
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
