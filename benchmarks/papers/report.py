"""What `precision-time reproduce` found: an HTML file with pictures, JSON, Markdown, and text for the shell."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.papers.study import Claim, Figure, Section, Table
from precision_time.fit.evaluation.style import STYLE
from precision_time.text_table import format_table
from precision_time.units import human_seconds

_MARKS = {True: ("met", "yes"), False: ("missed", "no"), None: ("beside", "-")}


@dataclass(frozen=True, slots=True)
class Report:
    """Sections in the order of the studies, the seconds each study took, and what made them.

    `failed` holds studies that could not be made, with the reason; `about` the versions, the machine, the date and how
    many rows there were.
    """

    sections: tuple[Section, ...]
    seconds: Mapping[str, float]
    failed: Mapping[str, str]
    about: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; pictures are left to the page."""
        return {
            "about": dict(self.about),
            "failed": dict(self.failed),
            "side_by_side": [asdict(v) for s in self.sections for v in s.verdicts],
            "studies": {
                s.key: {
                    "title": s.title,
                    "text": list(s.text),
                    "claims": [
                        {"what": c.what, "published": c.published, "found": c.found, "met": c.met, "why": c.why}
                        for c in s.claims
                    ],
                    "tables": [
                        {"caption": t.caption, "header": list(t.header), "rows": [list(r) for r in t.rows]}
                        for t in s.tables
                    ],
                    "seconds": round(self.seconds.get(s.key, 0.0), 1),
                    "data": dict(s.data),
                }
                for s in self.sections
            },
        }

    @property
    def side_by_side(self) -> Table | None:
        """All predictors in one table, by the rows they are judged on; None where nothing was judged."""
        verdicts = [v for s in self.sections for v in s.verdicts]
        if not verdicts:
            return None
        precisions = sorted({name for v in verdicts for name in v.errors if name != "all"})
        rows = []
        for verdict in sorted(verdicts, key=lambda v: v.rows):
            whole = verdict.errors["all"]
            by = [verdict.errors[p].mape if p in verdict.errors else None for p in precisions]
            rows.append((
                verdict.predictor, verdict.rows, verdict.left_out, f"{whole.rows:,}",
                *(f"{100 * e:.1f}" for e in (whole.mape, whole.median, whole.p90)), f"{100 * whole.signed:+.1f}",
                *("-" if e is None else f"{100 * e:.1f}" for e in by),
                "not known" if verdict.measured_s is None else human_seconds(verdict.measured_s),
                "-" if verdict.call_s is None else human_seconds(verdict.call_s),
            ))  # fmt: skip
        return Table(
            "All of them, each without what is left out: errors in %, mean error by precision, seconds of runs or "
            "operators it learnt from, seconds of one answer",
            ("predictor", "rows", "left out", "n", "MAPE", "median", "P90", "signed", *precisions, "measured", "call"),
            tuple(rows),
        )

    def __str__(self) -> str:
        """Every claim with what was found, by study."""
        parts = []
        if table := self.side_by_side:
            parts.append(f"{table.caption}\n\n{format_table(table.header, table.rows, left=3)}")
        for section in self.sections:
            parts.append(f"{section.title} ({self.seconds.get(section.key, 0.0):.0f} s)")
            if section.claims:
                rows = [[c.what, c.published, c.found, _MARKS[c.met][0]] for c in section.claims]
                parts.append(format_table(["claim", "published or goal", "found", ""], rows, left=4))
            parts += [
                textwrap.fill(f"{c.what}: {c.why}", 118, initial_indent="  ", subsequent_indent="  ")
                for c in section.claims
                if c.met is False and c.why
            ]
        parts += [f"{name}: not made, {reason}" for name, reason in self.failed.items()]
        return "\n\n".join(parts)


def markdown(report: Report) -> str:
    """Claims, text and tables, without pictures: what a repository keeps of a report."""
    lines = ["# The published predictors, side by side", "", *(f"- {k}: {v}" for k, v in report.about.items())]
    if table := report.side_by_side:
        lines += ["", f"{table.caption}:", "", *_rows(table.header, table.rows)]
    for section in report.sections:
        lines += ["", f"## {section.title}", ""]
        for text in section.text:
            lines += [text, ""]
        if section.claims:
            rows = [(c.what, c.published, c.found, _MARKS[c.met][0], c.why) for c in section.claims]
            lines += [*_rows(("claim", "published or goal", "found", "", "why"), rows), ""]
        for table in section.tables:
            lines += [f"{table.caption}:", "", *_rows(table.header, table.rows), ""]
        lines.append(f"({report.seconds.get(section.key, 0.0):.0f} s)")
    lines += ["", *(f"- {name}: not made, {why}" for name, why in report.failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in cells]


def page(report: Report) -> str:
    """The whole document; it needs nothing from the network."""
    title = "The published predictors, side by side"
    body = [f"<h1>{title}</h1>", _list(f"{name}: {value}" for name, value in report.about.items())]
    body.append("<p>" + " · ".join(f'<a href="#{s.key}">{_text(s.title)}</a>' for s in report.sections) + "</p>")
    body += [f'<p class="note">{_text(name)}: not made, {_text(why)}</p>' for name, why in report.failed.items()]
    if table := report.side_by_side:
        body.append(_table(table))
    claims = [c for s in report.sections for c in s.claims]
    if claims:
        body += ["<h2>Claims and goals</h2>", _claims(claims)]
    for section in report.sections:
        body += _section(section, report.seconds.get(section.key, 0.0))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}{_MORE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


_MORE = """
.claims td, .claims th { white-space: normal; vertical-align: top; text-align: left; }
td.mark-yes { color: #009E73; font-weight: 600; }
td.mark-no { color: #D55E00; font-weight: 600; } figure { margin: 1em 0; } figcaption { color: var(--soft); }
td.why { max-width: 40em; }
.plate { background: #fff; color: #1a1a1a; padding: .5em; } .plate svg text { fill: #1a1a1a; }
"""


def _section(section: Section, seconds: float) -> list[str]:
    parts = [f'<h2 id="{_text(section.key)}">{_text(section.title)}</h2>']
    parts += [f"<p>{_text(line)}</p>" for line in section.text]
    if section.claims:
        parts.append(_claims(section.claims))
    parts += [_table(table) for table in section.tables]
    parts += [_figure(figure) for figure in section.figures]
    parts.append(f'<p class="soft">This study took {seconds:.0f} s.</p>')
    return parts


def _claims(claims: Sequence[Claim]) -> str:
    head = "<th>claim</th><th>published or goal</th><th>found here</th><th>met</th><th>why</th>"
    lines = []
    for claim in claims:
        said, mark = _MARKS[claim.met]
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in (claim.what, claim.published, claim.found))
        lines.append(f'<tr>{cells}<td class="mark-{mark}">{said}</td><td class="why">{_text(claim.why)}</td></tr>')
    return _scrolling(head, lines, "claims")


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.header)
    lines = ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in table.rows]
    return f'<p class="soft">{_text(table.caption)}</p>{_scrolling(head, lines)}'


def _scrolling(head: str, lines: Sequence[str], kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    body = "\n".join(lines)
    return f'<div class="wide"><table{named}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _figure(figure: Figure) -> str:
    picture = figure.svg[figure.svg.index("<svg") :] if "<svg" in figure.svg else figure.svg
    return f'<figure><div class="plate">{picture}</div><figcaption>{_text(figure.caption)}</figcaption></figure>'


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _text(value: object) -> str:
    return html.escape(str(value))
