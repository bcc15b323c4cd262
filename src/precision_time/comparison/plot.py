"""A comparison as a picture: one stacked bar per job with its P10-P90 interval. PNG, SVG or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.comparison.table import all_read_tokens, breakdown_table, row_names, summary_table, title
from precision_time.estimate.estimate import BREAKDOWN_TERMS
from precision_time.estimate.quantile import label
from precision_time.estimate.text import TERM_LABELS, achieved_parts
from precision_time.report import figure as figures
from precision_time.report.page import bullets, page
from precision_time.report.write import write_whole
from precision_time.units import human_count, unit_for

if TYPE_CHECKING:
    from precision_time.comparison.comparison import Comparison, Row
    from precision_time.estimate.estimate import Estimate

CHARACTER = 0.0078
"""Width of a character of a row's text, as a share of the axes."""
LEAST_SHARE = 0.002
"""Terms below this share of every step are left out of the legend: they are thinner than a line."""


def plot(comparison: Comparison, path: str | Path) -> None:
    """Write the picture at `path`, whose suffix is .png, .svg or .html; a failure leaves no file.

    Raises `JobError` for another suffix, `MissingExtraError` without matplotlib, `DataError` when it cannot be written.
    """
    kind = figures.image_kind(path)
    picture = _draw(comparison)
    write_whole(path, _page(comparison, picture) if kind == "html" else figures.image(picture, kind, name="comparison"))


def _draw(comparison: Comparison) -> Any:
    rows, base = comparison.rows, comparison.baseline
    figure, axes = figures.new_figure(9.5, min(400.0, 1.6 + 0.5 * len(rows)))
    factors = _factors(rows)
    predicted = [(row.estimate, f) for row, f in zip(rows, factors, strict=True) if row.estimate]
    scale, unit = unit_for(max((estimate.step.p50 * f for estimate, f in predicted), default=1.0))
    tokens = all_read_tokens(rows)
    needed = 0.0
    for index, (row, factor) in enumerate(zip(rows, factors, strict=True)):
        if row.estimate is None:
            axes.text(0, index, " no estimate", va="center", color="#666666", style="italic")
        else:
            text = _label(row.estimate, row.speed_up_over(base), tokens)
            end = _bar(axes, index, row.estimate, factor / scale, text)
            needed = max(needed, end / (1.0 - CHARACTER * (len(text) + 3)))
    axes.set_yticks(range(len(rows)), [name.replace(", ", "\n", 1) for name in row_names(rows)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, needed or 1.0)
    quantity = "time of one step" if all(f == 1.0 for f in factors) else "time per 1,000 samples"
    diamonds = f"; diamonds: {label(comparison.quantile)}" if comparison.quantile is not None else ""
    axes.set_xlabel(f"{quantity} ({unit}); whiskers: P10 to P90{diamonds}", fontsize=9)
    axes.set_title(f"{title(comparison)}: predicted", loc="left", fontsize=11)
    terms = [
        term
        for term in BREAKDOWN_TERMS
        if any(e.breakdown.get(term, 0) > LEAST_SHARE * e.step.p50 for e, _ in predicted)
    ]
    handles = [axes.barh(0, 0, color=_colour(term)) for term in terms]
    figure.legend(
        handles, [TERM_LABELS[term] for term in terms], loc="outside lower center", ncols=6, fontsize=8, frameon=False
    )
    return figure


def _colour(term: str) -> str:
    return figures.STACK[BREAKDOWN_TERMS.index(term)]


def _factors(rows: Sequence[Row]) -> list[float]:
    """1 for every row where all steps hold as many samples, else the factor that makes a step 1,000 samples."""
    samples = [row.estimate.samples_per_s * row.estimate.step.p50 if row.estimate else None for row in rows]
    known = [count for count in samples if count is not None]
    if not known or max(known) <= 1.001 * min(known):
        return [1.0] * len(rows)
    return [1000.0 / count if count else 1.0 for count in samples]


def _label(estimate: Estimate, speed_up: float | None, tokens: bool) -> str:
    """ "12,300 tokens/s, 410 TFLOP/s a GPU, MFU 41%, HFU 51%, 1.85x, does not fit"."""
    achieved = estimate.utilisation
    per_s = achieved.tokens_per_s if achieved is not None and tokens else None
    parts = [f"{human_count(per_s or estimate.samples_per_s)} {'tokens' if per_s else 'samples'}/s"]
    if achieved is not None:
        parts += achieved_parts(achieved)
    if speed_up is not None:
        parts.append(f"{speed_up:.2f}x")
    if not estimate.memory.fits:
        parts.append("does not fit")
    return ", ".join(parts)


def _bar(axes: Any, index: int, estimate: Estimate, factor: float, text: str) -> float:
    """The bar of one row with its text; returns where the text starts."""
    start = 0.0
    for term in BREAKDOWN_TERMS:
        width = estimate.breakdown.get(term, 0.0) * factor
        axes.barh(index, width, left=start, height=0.55, color=_colour(term))
        start += width
    low, middle, high = (v * factor for v in (estimate.step.p10, estimate.step.p50, estimate.step.p90))
    axes.errorbar(
        middle, index, xerr=[[middle - low], [high - middle]], color="black", capsize=3, linewidth=1, fmt="none"
    )
    furthest = max(high, start)
    if estimate.quantile is not None:
        at = estimate.at_quantile(estimate.quantile).step_s * factor
        axes.plot([at], [index], **figures.FURTHER_QUANTILE)
        furthest = max(furthest, at)
    axes.annotate(text, (furthest, index), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8)
    return float(furthest)


def _page(comparison: Comparison, picture: Any) -> str:
    body = [
        figures.svg(picture, "comparison"),
        summary_table(comparison).html(),
        breakdown_table(comparison).html(),
        bullets(comparison.explanations()),
    ]
    return page(f"Comparison: {title(comparison)}", body)
