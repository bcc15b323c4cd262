"""The part of docs/large-models.md that `fit/layouts.py` writes, from what `timing/data/layout_scales.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.fit.kernel_report import as_text

BEGIN, END = "<!-- layouts:begin -->", "<!-- layouts:end -->"
SMALL = ("<!-- layouts-small:begin -->", "<!-- layouts-small:end -->")
BY = "held out by model"
"""The run that summaries show."""

_TEXT = """\
`{command}` ({date}): {rows} rows of trust A and B are fitted, {judged} judged. Mean error (signed mean) of the step,
every row by factors that never saw it:

{table}

In P10-P90, held out by model: {coverage}.

The factors, with what they were drawn to before any row was seen:

{factors}
"""


def section(document: Mapping[str, Any]) -> str:
    """Tables of errors by group of rows, and of the factors."""
    provenance, errors = document["provenance"], document["errors"]
    rows = []
    for group in errors["groups"]:
        cells = {"rows": group["title"], "trust": group["trust"], "n": str(group["n"])}
        cells |= {
            run: f"{100 * found['mape']:.1f} % ({100 * found['signed']:+.1f})" for run, found in group["runs"].items()
        }
        rows.append({**cells, "goal": group["goal"]})
    fitted = _flat(document["costs"])
    factors = [
        {"factor": name, "fitted": f"{fitted[name]:.2f}", "usual": f"{prior['usual']:g}", "why": prior["why"]}
        for name, prior in provenance["priors"].items()
    ]
    return _TEXT.format(
        command=provenance["command"],
        date=provenance["date"],
        rows=provenance["rows"],
        judged=errors["judged"],
        table=as_text(rows),
        coverage=", ".join(f"{name} {100 * share:.0f} %" for name, share in errors["coverage"].items()),
        factors=as_text(factors),
    )


def _flat(costs: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in costs.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": float(v) for key, v in value.items()}
        else:
            found[name] = float(value)
    return found


def summary(document: Mapping[str, Any]) -> str:
    """A small table: each group of rows of trust A and B, held out by model."""
    rows = []
    for group in document["errors"]["groups"]:
        if group["trust"] != "A, B":
            continue
        found = group["runs"][BY]
        cells = {"measured": group["title"], "rows": str(group["n"]), "mean error": f"{100 * found['mape']:.1f} %"}
        cells |= {"median": f"{100 * found['median']:.1f} %", "P90": f"{100 * found['p90']:.1f} %"}
        rows.append({**cells, "in P10-P90": f"{100 * document['errors']['coverage'][group['title']]:.0f} %"})
    return as_text(rows) + "\n"


def filled(page: str, document: Mapping[str, Any]) -> str:
    """The page with the tables, or the small one, between its markers."""
    for (begin, end), written in (((BEGIN, END), section), (SMALL, summary)):
        if begin in page and end in page:
            before, rest = page.split(begin, 1)
            return f"{before}{begin}\n{written(document)}{end}{rest.split(end, 1)[1]}"
    raise DataError(f"the page has no {BEGIN} ... {END}: add both lines where the tables belong")
