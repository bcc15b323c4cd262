"""The report of an evaluation: one HTML file with figures, tables and every row, that needs no network."""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.estimate.text import TERM_LABELS, interval_text
from precision_time.evaluation import figures
from precision_time.evaluation.evaluation import MOST_LISTED, Evaluation
from precision_time.evaluation.rows import JudgedRow
from precision_time.evaluation.text import (
    LEGEND,
    accuracy_table,
    assumed_sentence,
    blind_table,
    first_names,
    headline,
    order_sentence,
    terms_text,
)
from precision_time.report import page as pages
from precision_time.report.errors import percent
from precision_time.report.figure import STACK, require_matplotlib
from precision_time.report.page import heading, paragraph
from precision_time.report.table import Cell, Table
from precision_time.units import human_seconds


def page(evaluation: Evaluation, command: str, worst: int = 10) -> str:
    """The whole document, with the command line that makes it again. Raises `MissingExtraError` without matplotlib."""
    require_matplotlib("the HTML report")
    title = f"Predicted against measured: {evaluation.table}"
    title += f", every job taken as {evaluation.blind}" if evaluation.blind else ""
    body = [paragraph(headline(evaluation))]
    body += [paragraph(note, "note") for note in (*evaluation.notes(), *evaluation.warnings)]
    if evaluation.judged:
        body += [*_figures(evaluation), *_tables(evaluation), *_worst(evaluation.worst(worst))]
    if evaluation.unpredicted:
        body.append(_unpredicted(evaluation))
    if evaluation.judged:
        body += _rows(evaluation.judged, evaluation.judged[:MOST_LISTED])
    body += _about(evaluation, command)
    return pages.page(title, body, pages.SORT_AND_FIND)


def _figures(evaluation: Evaluation) -> list[str]:
    judged = evaluation.judged
    parts = [
        heading("Predicted over measured"),
        paragraph(
            "One point per row. On the line a prediction is exact, the band is ±20 %; below, the ratio. Point at a dot "
            "for its numbers, click to find its row.",
            "soft",
        ),
        figures.scatter(judged[:: 1 + len(judged) // MOST_LISTED]),
        heading("Errors"),
        paragraph(
            "Right of zero the prediction is too slow. Box: the middle half; whiskers: P5 and P95; grey: ±20 %. "
            "Colours are the precisions of the first figure.",
            "soft",
        ),
    ]
    for grouping, name in (("precision", "precision"), ("family", "model family"), ("gpu", "GPU")):
        parts += [heading(f"by {name}", 3), figures.errors_by(judged, grouping, evaluation.groups(grouping))]
    return [*parts, heading("Share of rows within an error", 3), figures.shares(evaluation)]


def _tables(evaluation: Evaluation) -> list[str]:
    parts = [heading("Accuracy")]
    if evaluation.blind is not None:
        caption = f"aware: each job in its own precision; blind: every job as {evaluation.blind}, on the same rows"
        parts += [paragraph(caption, "soft"), blind_table(evaluation).html()]
    parts += [accuracy_table(evaluation).html(), paragraph(LEGEND, "soft")]
    return [*parts, paragraph(order_sentence(evaluation.order))]


def _worst(judged: Sequence[JudgedRow]) -> list[str]:
    if not judged:
        return []
    colours = zip(BREAKDOWN_TERMS, STACK, strict=True)
    key = "".join(f'<i style="background:{c}"></i>{html.escape(TERM_LABELS[t])}' for t, c in colours)
    rows: list[list[str | Cell]] = [
        [
            Cell(j.row.id, markup=f'<a href="#r{j.row.line}">{html.escape(j.row.id)}</a>', css="prose"),
            human_seconds(j.row.measured_s),
            interval_text(j.step),
            percent(j.error, sign="+"),
            Cell(terms_text(j), markup=f'{_bar(j)}<span class="soft">{html.escape(terms_text(j))}</span>', css="prose"),
        ]
        for j in judged
    ]
    return [
        heading(f"Furthest off ({len(judged)})"),
        f'<p class="soft key">terms of the predicted step: {key}</p>',
        Table(["row", "measured", "predicted (P10-P90)", "error", "predicted terms"], rows).html(),
    ]


def _bar(judged: JudgedRow) -> str:
    total = sum(judged.breakdown.values()) or 1.0
    parts = [
        f'<i style="background:{colour};width:{100 * judged.breakdown.get(term, 0.0) / total:.1f}%"></i>'
        for term, colour in zip(BREAKDOWN_TERMS, STACK, strict=True)
    ]
    return f'<div class="bar">{"".join(parts)}</div>'


def _unpredicted(evaluation: Evaluation) -> str:
    items = []
    for reason, rows in evaluation.unpredicted_by_reason():
        text = html.escape(f"{len(rows):,} x {reason}")
        ids = html.escape(first_names([row.id for row in rows], MOST_LISTED))
        if len(rows) <= 3:
            items.append(f'<li>{text} <span class="soft">({ids})</span></li>')
        else:
            items.append(f'<li><details><summary>{text}</summary><p class="soft">{ids}</p></details></li>')
    title = heading(f"Rows without a prediction ({len(evaluation.unpredicted):,})")
    return "\n".join([title, "<ul>", *items, "</ul>"])


_COLUMNS = ("row", "inside", "precision", "GPU", "model", "framework", "trust", "GPUs", "measured", "predicted",
            "P10-P90", "error")  # fmt: skip


def _rows(judged: Sequence[JudgedRow], listed: Sequence[JudgedRow]) -> list[str]:
    table = Table(_COLUMNS, [_row(j) for j in listed], left=7)
    which = "All rows" if len(listed) == len(judged) else f"The first {len(listed):,} rows of"
    return [
        heading(f"{which} ({len(judged):,})"),
        '<input id="find" placeholder="find rows: words of any column" aria-label="find rows">',
        table.html(css="sort", element_id="rows", row_ids=[f"r{j.row.line}" for j in listed]),
    ]


def _row(judged: JudgedRow) -> list[str | Cell]:
    row, step = judged.row, judged.step
    return [
        Cell(row.id, css="prose"),
        "yes" if judged.inside else "no",
        row.precision,
        row.gpu,
        row.model,
        row.framework,
        row.trust,
        str(row.gpus),
        Cell(human_seconds(row.measured_s), sort=row.measured_s),
        Cell(human_seconds(step.p50), sort=step.p50),
        Cell(f"{human_seconds(step.p10)} - {human_seconds(step.p90)}", sort=step.p10),
        Cell(percent(judged.error, sign="+"), sort=judged.error),
    ]


def _about(evaluation: Evaluation, command: str) -> list[str]:
    try:
        package = version("precision-time")
    except PackageNotFoundError:
        package = "(not installed)"
    lines = [assumed_sentence(evaluation)] if evaluation.judged else []
    if evaluation.blind is not None:
        lines.append(f"Blind twin: every job was predicted as {evaluation.blind}, whatever it was measured in.")
    lines.append(f"precision-time {package}, {datetime.date.today().isoformat()}")
    code = f"<p><code>{html.escape(command)}</code></p>"
    return [heading("About these figures"), *(paragraph(line) for line in lines if line), code]
