"""The report of all studies as an HTML page, JSON, Markdown, and text for the shell."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.papers.study import Claim, Section, Table, Verdict
from precision_time.report import page as html
from precision_time.report.errors import percent
from precision_time.report.table import Cell
from precision_time.report.table import Table as Grid
from precision_time.units import human_seconds

TITLE = "The published predictors, side by side"
_MET = {True: "met", False: "missed", None: "-"}
_MARK = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True, slots=True)
class Report:
    """Sections in the order of the studies, the seconds of each study, and what made them.

    `failed` maps a study without a section to the reason; `about` holds versions, machine, date and row counts.
    """

    sections: tuple[Section, ...]
    seconds: Mapping[str, float]
    failed: Mapping[str, str]
    about: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; only the page has the figures."""
        return {
            "about": dict(self.about),
            "failed": dict(self.failed),
            "side_by_side": [asdict(v) for v in self.verdicts],
            "studies": {
                s.key: {
                    "title": s.title,
                    "text": list(s.text),
                    "claims": [asdict(claim) for claim in s.claims],
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
    def verdicts(self) -> list[Verdict]:
        """Those of all sections, by the rows they are judged on."""
        return sorted((v for s in self.sections for v in s.verdicts), key=lambda v: v.rows)

    @property
    def side_by_side(self) -> Table | None:
        """All predictors in one table; None where nothing was judged."""
        verdicts = self.verdicts
        if not verdicts:
            return None
        precisions = sorted({name for v in verdicts for name in v.errors if name != "all"})
        rows = tuple(
            (
                v.predictor,
                v.rows,
                v.left_out,
                *v.errors["all"].cells(("n", "mape", "median_ape", "p90_ape", "signed_mean")),
                *(percent(v.errors[p].mape) if p in v.errors else "-" for p in precisions),
                "not known" if v.measured_s is None else human_seconds(v.measured_s),
                "-" if v.call_s is None else human_seconds(v.call_s),
            )
            for v in verdicts
        )
        return Table(
            "All predictors, judged on what was held out: errors, MAPE by precision, seconds of the runs or operators "
            "that each learned from, seconds of one answer",
            ("predictor", "rows", "held out", "n", "MAPE", "median", "P90", "signed", *precisions, "measured", "call"),
            rows,
            left=3,
        )

    def __str__(self) -> str:
        """Every claim with the figure found, by study."""
        parts = []
        if table := self.side_by_side:
            parts.append(f"{table.caption}\n\n{_grid(table).text()}")
        for section in self.sections:
            parts.append(f"{section.title} ({self.seconds.get(section.key, 0.0):.0f} s)")
            if section.claims:
                rows = [(c.what, c.published, c.found, _MET[c.met]) for c in section.claims]
                parts.append(Grid(("claim", "published or target", "found", ""), rows, left=4).text())
            parts += [
                textwrap.fill(f"{c.what}: {c.why}", 118, initial_indent="  ", subsequent_indent="  ")
                for c in section.claims
                if c.met is False and c.why
            ]
        parts += [f"{name}: failed, {reason}" for name, reason in self.failed.items()]
        return "\n\n".join(parts)


def markdown(report: Report) -> str:
    """Claims, text and tables without figures, which the repository keeps."""
    parts = [f"# {TITLE}", "\n".join(f"- {name}: {value}" for name, value in report.about.items())]
    if table := report.side_by_side:
        parts += [f"{table.caption}:", _grid(table).markdown()]
    for section in report.sections:
        parts += [f"## {section.title}", *section.text]
        if section.claims:
            parts.append(_claims(section.claims).markdown())
        for table in section.tables:
            parts += [f"{table.caption}:", _grid(table).markdown()]
        parts.append(f"({report.seconds.get(section.key, 0.0):.0f} s)")
    parts += [f"- {name}: failed, {why}" for name, why in report.failed.items()]
    return "\n\n".join(parts) + "\n"


def page(report: Report) -> str:
    """The HTML document; it needs nothing from the network."""
    body = [html.bullets(f"{name}: {value}" for name, value in report.about.items())]
    body += [html.paragraph(f"{name}: failed, {why}", "note") for name, why in report.failed.items()]
    if table := report.side_by_side:
        body += [html.paragraph(table.caption, "soft"), _grid(table).html("sort")]
    if claims := [c for s in report.sections for c in s.claims]:
        body += [html.heading("Claims and targets"), _claims(claims).html()]
    for section in report.sections:
        body += _section(section, report.seconds.get(section.key, 0.0))
    return html.page(TITLE, body, html.SORT_AND_FIND)


def _section(section: Section, seconds: float) -> Iterator[str]:
    yield html.heading(section.title, element_id=section.key)
    yield from map(html.paragraph, section.text)
    if section.claims:
        yield _claims(section.claims).html()
    for table in section.tables:
        yield html.paragraph(table.caption, "soft")
        yield _grid(table).html("sort")
    for figure in section.figures:
        yield html.captioned(figure.svg, figure.caption)
    yield html.paragraph(f"This study took {seconds:.0f} s.", "soft")


def _grid(table: Table) -> Grid:
    return Grid(table.header, table.rows, table.left)


def _claims(claims: Sequence[Claim]) -> Grid:
    rows = [
        (
            Cell(c.what, css="prose"),
            Cell(c.published, css="prose"),
            Cell(c.found, css="prose"),
            Cell(_MET[c.met], css=_MARK[c.met]),
            Cell(c.why, css="prose"),
        )
        for c in claims
    ]
    return Grid(("claim", "published or target", "found", "", "why"), rows, left=5)
