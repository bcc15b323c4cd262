"""The part of docs/large-models.md that `fit/layouts.py` writes, from what `timing/data/layout_scales.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precision_time.errors import DataError
from precision_time.fit.kernel_report import as_text

BEGIN, END = "<!-- layouts:begin -->", "<!-- layouts:end -->"

_TEXT = """\
`{command}` ({date}): {rows} rows of trust A and B are fitted, {judged} judged. Mean error of the step (its signed mean), every
row by factors that never saw it:

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


def filled(page: str, document: Mapping[str, Any]) -> str:
    """The page with the section between its markers."""
    if BEGIN not in page or END not in page:
        raise DataError(f"the page has no {BEGIN} ... {END}: add both lines where the tables belong")
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{section(document)}{END}{rest.split(END, 1)[1]}"
