"""The report: one HTML file with pictures, tables and every row, that needs nothing from the network."""

from __future__ import annotations

import datetime
import html
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.estimate.text import interval_text
from precision_time.fit.evaluation import figures
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.evaluation.evaluation import Evaluation
from precision_time.fit.evaluation.style import STYLE
from precision_time.fit.evaluation.text import (
    LEGEND,
    accuracy_rows,
    assumed_sentence,
    blind_rows,
    headline,
    order_sentence,
    percent,
    terms_text,
)
from precision_time.units import human_seconds

_TERM_COLOURS = (
    "#0072B2", "#56B4E9", "#009E73", "#B8A500", "#7A4FBF", "#CC79A7", "#999999", "#D55E00", "#E0B0A0", "#6E4B1F",
    "#4B5D67",
)  # fmt: skip
_SCRIPT = """
for (const table of document.querySelectorAll("table.sort")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const up = head.dataset.up = head.dataset.up === "1" ? "0" : "1";
    const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
    const numeric = rows.every(([k]) => k === "" || !isNaN(k));
    rows.sort(([a], [b]) => (up === "1" ? 1 : -1) * (numeric ? a - b : a.localeCompare(b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}
const box = document.querySelector("#find");
if (box) box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const row of document.querySelector("#rows").tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
"""


def page(evaluation: Evaluation, command: str, worst: int = 10) -> str:
    """The whole document. Raises `MissingExtraError` without matplotlib."""
    figures.require_matplotlib()
    title = f"Predicted against measured: {evaluation.table}"
    title += f", every job taken as {evaluation.blind}" if evaluation.blind else ""
    body = [f"<h1>{_text(title)}</h1>", f"<p>{_text(headline(evaluation))}</p>"]
    body += [f'<p class="note">{_text(note)}</p>' for note in (*evaluation.notes(), *evaluation.warnings)]
    if evaluation.judged:
        body += [*_pictures(evaluation), *_tables(evaluation), _worst(evaluation.worst(worst))]
    if evaluation.unpredicted:
        body.append(_unpredicted(evaluation))
    if evaluation.judged:
        body.append(_rows(evaluation.judged))
    body.append(_about(evaluation, command))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(body) + f"\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _pictures(evaluation: Evaluation) -> list[str]:
    judged = evaluation.judged
    series = figures.blind_series(evaluation)
    dashed = None if evaluation.blind is None else list(series)[-1]
    by = [
        f"<h3>by {word}</h3>{figures.errors_by(judged, grouping, evaluation.groups(grouping))}"
        for grouping, word in (("precision", "precision"), ("family", "model family"), ("gpu", "GPU"))
    ]
    return [
        "<h2>Predicted over measured</h2>",
        '<p class="soft">One point per row; on the line is exact, the band is &#177;20 %; below, as a ratio. '
        "Point at one for its numbers, click to find its row.</p>",
        figures.scatter(judged),
        "<h2>Errors</h2>",
        '<p class="soft">Right of zero the prediction is too slow. Box: the middle half; whiskers: P5 and P95; '
        "grey: &#177;20 %. Colours are the precisions of the first picture.</p>",
        *by,
        "<h3>Share of rows within an error</h3>",
        figures.shares(series, dashed),
    ]


def _tables(evaluation: Evaluation) -> list[str]:
    parts = ["<h2>Accuracy</h2>"]
    if evaluation.blind is not None:
        parts += [
            f'<p class="soft">aware: each job in its own precision; blind: every job as {_text(evaluation.blind)}, '
            "on the same rows</p>",
            _plain_table(*blind_rows(evaluation)),
        ]
    return [
        *parts,
        _plain_table(*accuracy_rows(evaluation)),
        f'<p class="soft">{_text(LEGEND)}</p>',
        f"<p>{_text(order_sentence(evaluation.order))}</p>",
    ]


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in heads)
    lines = []
    for row in rows:
        if any(row[1:]):
            lines.append("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
        else:  # "by precision" stands above its groups
            lines.append(f'<tr class="group"><td colspan="{len(row)}">{_text(row[0])}</td></tr>')
    return _table(head, lines)


def _table(head: str, lines: Sequence[str], attributes: str = "") -> str:
    body = "\n".join(lines)
    return f'<div class="wide"><table{attributes}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _worst(rows: Sequence[Judged]) -> str:
    if not rows:
        return ""
    key = "".join(f'<i style="background:{c}"></i>{_text(t.replace("_", " "))}' for t, c in _term_colours())
    lines = [
        f'<tr><td class="id"><a href="#r{j.row.line}">{_text(j.row.id)}</a></td>'
        f"<td>{human_seconds(j.row.measured_s)}</td><td>{interval_text(j.step)}</td>"
        f"<td>{percent(j.error, sign='+')}</td>"
        f'<td class="terms">{_bar(j)}<span class="soft">{_text(terms_text(j))}</span></td></tr>'
        for j in rows
    ]
    head = "<th>row</th><th>measured</th><th>predicted (P10-P90)</th><th>error</th>"
    head += '<th class="text">predicted terms</th>'
    return (
        f'<h2>Furthest off ({len(rows)})</h2><p class="soft key">where the predicted step goes: {key}</p>\n'
        f"{_table(head, lines)}"
    )


def _term_colours() -> list[tuple[str, str]]:
    return list(zip(BREAKDOWN_TERMS, _TERM_COLOURS, strict=True))


def _bar(judged: Judged) -> str:
    whole = sum(judged.breakdown.values()) or 1.0
    parts = [
        f'<i style="background:{c};width:{100 * judged.breakdown.get(term, 0.0) / whole:.1f}%"></i>'
        for term, c in _term_colours()
    ]
    return f'<div class="bar">{"".join(parts)}</div>'


def _unpredicted(evaluation: Evaluation) -> str:
    items = []
    for reason, rows in evaluation.unpredicted_by_reason():
        what, ids = f"{len(rows):,} x {_text(reason)}", _text(", ".join(row.id for row in rows))
        if len(rows) <= 3:
            items.append(f'<li>{what} <span class="soft">({ids})</span></li>')
        else:
            items.append(f'<li><details><summary>{what}</summary><p class="soft">{ids}</p></details></li>')
    listed = "\n".join(items)
    return f"<h2>Rows without a prediction ({len(evaluation.unpredicted):,})</h2>\n<ul>\n{listed}\n</ul>"


_LEFT = ' class="text"'
_ROW_HEADS = (
    ("row", "text"), ("measured", ""), ("predicted", ""), ("P10-P90", ""), ("error", ""), ("inside", "text"),
    ("precision", "text"), ("GPUs", ""), ("GPU", "text"), ("model", "text"), ("framework", "text"), ("trust", "text"),
)  # fmt: skip


def _rows(judged: Sequence[Judged]) -> str:
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in _ROW_HEADS)
    return (
        f'<h2>All rows ({len(judged):,})</h2>\n<input id="find" placeholder="find rows: words of any column" '
        'aria-label="find rows">\n' + _table(head, [_row(j) for j in judged], ' class="sort" id="rows"')
    )


def _row(judged: Judged) -> str:
    row = judged.row
    numbers = (
        (row.measured_s, human_seconds(row.measured_s)),
        (judged.step.p50, human_seconds(judged.step.p50)),
        (judged.step.p10, f"{human_seconds(judged.step.p10)} - {human_seconds(judged.step.p90)}"),
        (judged.error, percent(judged.error, sign="+")),
    )
    words = ("yes" if judged.inside else "no", row.precision, str(row.gpus), row.gpu, row.model, row.framework)
    cells = [f'<td class="id">{_text(row.id)}</td>']
    cells += [f'<td data-v="{value:.6g}">{text}</td>' for value, text in numbers]
    cells += [f"<td{'' if w.isdigit() else _LEFT}>{_text(w)}</td>" for w in (*words, row.trust)]
    return f'<tr id="r{row.line}">{"".join(cells)}</tr>'


def _about(evaluation: Evaluation, command: str) -> str:
    try:
        package = version("precision-time")
    except PackageNotFoundError:
        package = "(not installed)"
    lines = [assumed_sentence(evaluation)] if evaluation.judged else []
    if evaluation.blind is not None:
        lines.append(f"Blind twin: every job was predicted as {evaluation.blind}, whatever it was measured in.")
    lines.append(f"precision-time {package}, {datetime.date.today().isoformat()}")
    text = "".join(f"<p>{_text(line)}</p>" for line in lines if line)
    return f"<h2>About these figures</h2>{text}<p><code>{_text(command)}</code></p>"


def _text(value: object) -> str:
    return html.escape(str(value))
