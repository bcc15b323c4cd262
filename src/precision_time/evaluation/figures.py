"""Figures of an evaluation as SVG for the HTML report: predicted over measured, errors by group, shares of rows."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from precision_time.errors import CatalogError
from precision_time.estimate.text import interval_text
from precision_time.evaluation.evaluation import Evaluation
from precision_time.evaluation.rows import Counted, JudgedRow, divided
from precision_time.report.errors import percent
from precision_time.report.figure import (
    BAND,
    GREY,
    MARKERS,
    Points,
    legend_dot,
    measured_vs_predicted,
    new_figure,
    precision_colour,
    precisions_in_order,
    svg,
)
from precision_time.units import human_seconds

MANY = 1500
"""With more rows than this, single points overlap in the error figures, so only boxes are drawn."""


def scatter(judged: Sequence[JudgedRow]) -> str:
    """Predicted over measured seconds and, below, their ratio; one point per row.

    Each point has a tooltip and a link to #rN, N the line of the row in the table.
    """
    figure, (over, ratio) = new_figure(8.6, 8.8, rows=2, height_ratios=(2.2, 1))
    architectures = [_architecture(j.row.gpu) for j in judged]
    markers = dict(zip(sorted(set(architectures)), MARKERS * len(judged), strict=False))
    size = 26.0 if len(judged) <= 600 else 14.0
    for axes, is_ratio in ((over, False), (ratio, True)):
        series = []
        for architecture, marker in markers.items():
            rows = [j for j, a in zip(judged, architectures, strict=True) if a == architecture]
            links = [f"#r{j.row.line}" for j in rows] if not is_ratio or len(judged) <= MANY else ()
            colours = [precision_colour(j.row.precision) for j in rows]
            measured, predicted = [j.row.measured_s for j in rows], [j.step.p50 for j in rows]
            series.append(Points(measured, predicted, colours, marker=marker, links=links))
        measured_vs_predicted(axes, series, ratio=is_ratio, size=size)
    over.set(xlabel="", ylabel="predicted step (P50)")
    ratio.set(xlabel="measured step")
    precisions = precisions_in_order([j.row.precision for j in judged])
    handles = [legend_dot(over, precision_colour(name)) for name in precisions]
    handles += [legend_dot(over, GREY, marker) for marker in markers.values()]
    over.legend(handles, [*precisions, *markers], loc="upper left", frameon=False)
    return _with_tooltips(svg(figure, "scatter"), judged)


def errors_by(judged: Sequence[JudgedRow], grouping: str, names: Sequence[str]) -> str:
    """Signed errors of each group: box from the first to the third quartile, whiskers at P5 and P95, a dot per row."""
    members = divided(map(Counted, judged), grouping)
    groups = {name: [each.judged for each in members[name]] for name in names if name in members}
    figure, axes = new_figure(8.6, 1.1 + 0.36 * len(groups))
    jitter = np.random.default_rng(0)
    for index, rows in enumerate(groups.values()):
        errors = [100 * j.error for j in rows]
        if len(judged) <= MANY:
            heights = index + jitter.uniform(-0.28, 0.28, len(rows))
            colours = [precision_colour(j.row.precision) for j in rows]
            axes.scatter(errors, heights, s=9, c=colours, alpha=0.6, linewidths=0)
        _box(axes, index, errors)
    axes.axvspan(-100 * BAND, 100 * BAND, color=GREY, alpha=0.14, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(groups)), [f"{name} ({len(rows):,})" for name, rows in groups.items()])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -110 * BAND), max(right, 110 * BAND))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f}%" if value else "0%")
    axes.set_xlabel("error: predicted / measured - 1")
    axes.tick_params(axis="y", length=0)
    return svg(figure, f"errors-{grouping}")


def _box(axes: Any, index: int, errors: Sequence[float]) -> None:
    p5, q1, middle, q3, p95 = np.quantile(errors, (0.05, 0.25, 0.5, 0.75, 0.95))
    axes.barh(index, q3 - q1, left=q1, height=0.62, facecolor="none", edgecolor="black", linewidth=0.8)
    axes.plot([middle, middle], [index - 0.31, index + 0.31], color="black", linewidth=1.6)
    for end, quartile in ((p5, q1), (p95, q3)):
        axes.plot([end, quartile], [index, index], color="black", linewidth=0.8)
        axes.plot([end, end], [index - 0.15, index + 0.15], color="black", linewidth=0.8)


def shares(evaluation: Evaluation) -> str:
    """Share of rows over the largest |error|: all rows and each precision; with a blind twin, aware and blind."""
    figure, axes = new_figure(8.6, 4.2)
    largest = 0.0
    for place, (name, judged) in enumerate(_series(evaluation).items()):
        sizes = np.sort([abs(j.error) for j in judged]) * 100
        largest = max(largest, float(np.quantile(sizes, 0.98)))
        style: dict[str, Any] = {"color": precision_colour(name), "linewidth": 1.3}
        if place == 0 or evaluation.blind is not None:
            style = {"color": "black", "linewidth": 2.2, "linestyle": "--" if place else "-"}
        share = np.arange(1, len(sizes) + 1) / len(sizes) * 100
        kept = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), MANY), dtype=int))
        axes.step([0, *sizes[kept]], [0, *share[kept]], where="post", label=f"{name} ({len(judged):,})", **style)
    axes.set(xlim=(0, max(10.0, largest * 1.05)), ylim=(0, 100.5), xlabel="|error| at most", ylabel="share of rows")
    axes.axvline(100 * BAND, color=GREY, linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return svg(figure, "shares")


def _series(evaluation: Evaluation) -> dict[str, Sequence[JudgedRow]]:
    """The lines of `shares`, the first one drawn thick."""
    if evaluation.blind is not None:
        return {"aware": evaluation.aware, f"all as {evaluation.blind}": evaluation.judged}
    series: dict[str, Sequence[JudgedRow]] = {"all rows": evaluation.judged}
    precisions = evaluation.groups("precision")
    for name in precisions if len(precisions) > 1 else ():
        if rows := [j for j in evaluation.judged if j.row.precision == name]:
            series[name] = rows
    return series


def _with_tooltips(text: str, judged: Sequence[JudgedRow]) -> str:
    titles = {str(j.row.line): html.escape(_tooltip(j)) for j in judged}

    def link(match: re.Match[str]) -> str:
        return f'<a href="#r{match[1]}"><title>{titles[match[1]]}</title>'

    return re.sub(r'<a xlink:href="#r(\d+)"[^>]*>', link, text)


def _tooltip(judged: JudgedRow) -> str:
    row = judged.row
    return (
        f"{row.id}\n{row.precision}, {row.gpus} x {row.gpu}\nmeasured {human_seconds(row.measured_s)}, "
        f"predicted {interval_text(judged.step)}\nerror {percent(judged.error, sign='+')}"
    )


def _architecture(gpu: str) -> str:
    from precision_time.hardware.catalog import default_catalog

    try:
        return default_catalog().gpu(gpu).arch
    except CatalogError:
        return gpu
