"""A comparison as a picture: one stacked bar per job, P10-P90 as a whisker. PNG, SVG or HTML."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.comparison import BREAKDOWN, speed_up_over
from precision_time.comparison_table import breakdown_rows, row_names, summary_rows, title
from precision_time.errors import JobError, MissingExtraError
from precision_time.job.file import write_whole
from precision_time.units import human_count, unit_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from precision_time.comparison import Comparison, EstimateLike, Row

SUFFIXES = (".png", ".svg", ".html")

# Okabe and Ito's palette: told apart by people with any colour vision.
_COLOURS = (
    "#0072B2", "#56B4E9", "#009E73", "#F0E442", "#A6CEE3", "#CC79A7", "#999999", "#D55E00", "#E69F00", "#6E4B1F",
    "#4B5D67",
)  # fmt: skip
_LABELS = (
    "forward",
    "backward",
    "optimizer",
    "loss scaling",
    "recomputation",
    "casts",
    "host gaps",
    "exposed communication",
    "pipeline bubble",
    "slowest GPU",
    "waiting for data",
)


def plot(comparison: Comparison, path: str | Path) -> None:
    """Write the picture at `path`; its suffix says which kind. A failure leaves no half-written file."""
    suffix = check_picture(path)
    if suffix == ".html":
        content = _page(comparison).encode()
    else:
        content = _draw(comparison, suffix[1:])
    write_whole(path, content)


def check_picture(path: str | Path) -> str:
    """The suffix of a picture's path, or a sentence."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise JobError(f"plot {str(path)!r} is no picture this can write; end it in .png, .svg or .html")
    return suffix


def _draw(comparison: Comparison, kind: str) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(
            "plot needs matplotlib, which is not installed; run pip install 'precision-time[plot]'"
        ) from None
    rows = comparison.rows
    base = comparison.baseline
    figure: Any = Figure(figsize=(9.5, min(400.0, 1.6 + 0.5 * len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    factors = _factors(rows)
    known = [(row.estimate, f) for row, f in zip(rows, factors, strict=True) if row.estimate]
    longest = max((estimate.step.p50 * f for estimate, f in known), default=1.0)
    reach = max((estimate.step.p90 * f for estimate, f in known), default=1.0)
    scale, unit = unit_for(longest)
    for index, (row, factor) in enumerate(zip(rows, factors, strict=True)):
        if row.estimate is None:
            axes.text(0, index, " no estimate", va="center", color="#666666", style="italic")
        else:
            _bar(axes, index, row.estimate, factor / scale, speed_up_over(base, row))
    axes.set_yticks(range(len(rows)), [name.replace(", ", "\n", 1) for name in row_names(rows)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.35 * reach / scale)  # room for the words to the right of the whiskers
    what = "Time of one step" if all(f == 1.0 for f in factors) else "Time per 1,000 samples"
    axes.set_xlabel(f"{what} ({unit}); whiskers: P10 to P90", fontsize=9)
    axes.set_title(f"{title(comparison)}: predicted", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    shown = [
        i for i, term in enumerate(BREAKDOWN) if any(e.breakdown.get(term, 0) > 0.002 * e.step.p50 for e, _ in known)
    ]
    handles = [_patch(_COLOURS[i]) for i in shown]
    figure.legend(handles, [_LABELS[i] for i in shown], loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150)
    return out.getvalue()


def _patch(colour: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour)


def _factors(rows: Sequence[Row]) -> list[float]:
    """1 for every row where all steps hold as many samples, else what makes a step 1,000 samples."""
    samples = [row.estimate.samples_per_s * row.estimate.step.p50 if row.estimate else None for row in rows]
    known = [count for count in samples if count is not None]
    if not known or max(known) <= 1.001 * min(known):
        return [1.0] * len(rows)
    return [1000.0 / count if count else 1.0 for count in samples]


def _bar(axes: Any, index: int, estimate: EstimateLike, factor: float, speed_up: float | None) -> None:
    start = 0.0
    for term, colour in zip(BREAKDOWN, _COLOURS, strict=True):
        width = estimate.breakdown.get(term, 0.0) * factor
        axes.barh(index, width, left=start, height=0.55, color=colour)
        start += width
    low, middle, high = (v * factor for v in (estimate.step.p10, estimate.step.p50, estimate.step.p90))
    whisker = [[middle - low], [high - middle]]
    axes.errorbar(middle, index, xerr=whisker, color="#333333", capsize=3, linewidth=1, fmt="none")
    text = f"{human_count(estimate.samples_per_s)} samples/s"
    text += "" if speed_up is None else f", {speed_up:.2f}x"
    text += "" if estimate.memory.fits else ", does not fit"
    axes.annotate(text, (max(high, start), index), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)


def _page(comparison: Comparison) -> str:
    svg = _draw(comparison, "svg").decode()
    svg = svg[svg.index("<svg") :]
    tables = "\n".join(_html_table(*part(comparison)) for part in (summary_rows, breakdown_rows))
    notes = "\n".join(f"<li>{html.escape(note)}</li>" for note in comparison.explanations())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>precision-time comparison</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
th, td {{ padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head><body>
<h1>precision-time: comparison</h1>
{svg}
{tables}
<ul>
{notes}
</ul>
</body></html>
"""


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
