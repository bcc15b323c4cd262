"""An estimate as a picture: where a step goes, the parts of the run, and the memory of a GPU, one stacked bar each."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.estimate.goodput import LABELS
from precision_time.estimate.text import TERM_LABELS, achieved_parts, headline
from precision_time.report import figure as figures
from precision_time.report.page import page
from precision_time.report.write import write_whole
from precision_time.units import human_count, unit_for

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate

GIB = 2**30


def plot(estimate: Estimate, path: str | Path | None) -> Any:
    """The matplotlib figure; with a path also written, as .png, .svg or a page .html.

    Raises `JobError` for another suffix, `MissingExtraError` without matplotlib, `DataError` when it cannot be written.
    """
    kind = figures.image_kind(path) if path is not None else None
    picture = _draw(estimate)
    if path is not None and kind == "html":
        body = f"<pre>{html.escape(str(estimate))}</pre>"
        write_whole(path, page(estimate.job.signature(), [figures.svg(picture, "estimate"), body]))
    elif path is not None and kind is not None:
        write_whole(path, figures.image(picture, kind, name="estimate"))
    return picture


def _draw(estimate: Estimate) -> Any:
    memory = estimate.memory
    scale, unit = unit_for(estimate.step.p50)
    terms = {TERM_LABELS[term]: seconds / scale for term, seconds in estimate.breakdown.items()}
    sure = estimate.quantile
    at = estimate.at_quantile(sure) if sure is not None else None
    bars = [
        _Bar(
            "step", terms, unit, estimate.step.p10 / scale, estimate.step.p90 / scale, at.step_s / scale if at else None
        )
    ]
    if estimate.goodput is not None:
        submitted = estimate.goodput.from_submission()
        whole = submitted.interval
        scale, unit = unit_for(whole.p50)
        further = submitted.quantile(sure) / scale if sure is not None else None
        parts = {LABELS[name]: part.p50 / scale for name, part in estimate.goodput.parts.items()}
        bars.append(_Bar("run", parts, unit, whole.p10 / scale, whole.p90 / scale, further))
    categories = {name: nbytes / GIB for name, nbytes in memory.by_category.items()}
    least, _, most = memory.peak_interval
    peak = at.peak_bytes / GIB if at else None
    bars.append(_Bar("memory of a GPU", categories, "GiB", least / GIB, most / GIB, peak))
    figure, axes = figures.new_figure(8.5, 2.1 * len(bars), rows=len(bars))
    for each, bar in zip(axes, bars, strict=True):
        _draw_bar(each, bar)
    axes[-1].axvline(memory.capacity_bytes / GIB, color=figures.GREY, ls="--", lw=1)
    axes[-1].set_xlim(0, 1.02 * max(most / GIB, memory.capacity_bytes / GIB, peak or 0.0))
    diamonds = f"; diamonds: {at.label}" if at else ""
    axes[-1].set_xlabel(f"memory of a GPU (GiB); dashed: what it has; black lines: P10 to P90{diamonds}", fontsize=8)
    figure.suptitle(f"{headline(estimate)}\n{_throughput(estimate)}", x=0.01, ha="left", fontsize=10)
    return figure


def _throughput(estimate: Estimate) -> str:
    """ "58,300 tokens per second, 422 TFLOP/s a GPU, MFU 43%, HFU 53%"."""
    achieved = estimate.utilisation
    tokens = achieved.tokens_per_s if achieved is not None else None
    rate = f"{human_count(tokens or estimate.samples_per_s)} {'tokens' if tokens else estimate.samples_unit} per second"
    return ", ".join([rate, *(achieved_parts(achieved) if achieved is not None else [])])


@dataclass(frozen=True, slots=True)
class _Bar:
    """Parts of a quantity in `unit`, P10 and P90 of their sum, and a further quantile of it."""

    name: str
    parts: Mapping[str, float]
    unit: str
    low: float
    high: float
    further: float | None


def _draw_bar(axes: Any, bar: _Bar) -> None:
    total = sum(bar.parts.values())
    left = 0.0
    for place, (name, value) in enumerate(bar.parts.items()):
        if value > 0.0:
            colour = figures.STACK[place % len(figures.STACK)]
            axes.barh(0, value, left=left, height=0.6, color=colour, label=f"{name} {value / total:.1%}")
            left += value
    axes.plot([bar.low, bar.high], [0, 0], color="black", lw=1.2, marker="|", markersize=9)
    if bar.further is not None:
        axes.plot([bar.further], [0], **figures.FURTHER_QUANTILE)
    axes.set_yticks([])
    axes.set_xlim(0, None)
    axes.set_xlabel(f"{bar.name} ({bar.unit})", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
