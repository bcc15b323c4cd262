"""Figures of the studies of Ernest and CherryPick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.study import Figure
from precision_time.report.figure import MARKERS, PALETTE, Points, measured_vs_predicted, new_figure, svg


def scatter(caption: str, groups: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """(measured, predicted) seconds, a colour and a marker for each group."""
    figure, axes = new_figure(5.2, 4.6)
    points = [
        Points(
            [measured for measured, _ in pairs],
            [predicted for _, predicted in pairs],
            PALETTE[at % len(PALETTE)],
            name,
            MARKERS[at % len(MARKERS)],
        )
        for at, (name, pairs) in enumerate(groups.items())
    ]
    measured_vs_predicted(axes, points)
    axes.legend(fontsize=8, frameon=False)
    return Figure(f"{caption}; the grey band is within 20 %", svg(figure, caption))


def gap_by_runs(caption: str, curves: Mapping[str, Sequence[float]]) -> Figure:
    """Gap to the lowest cost (%) over runs made, a curve for each way of searching."""
    figure, axes = new_figure(6.4, 3.8)
    for at, (name, gaps) in enumerate(curves.items()):
        style = {"marker": MARKERS[at % len(MARKERS)], "markersize": 4, "color": PALETTE[at % len(PALETTE)]}
        axes.plot(range(1, len(gaps) + 1), 100.0 * np.asarray(gaps), label=name, **style)
    axes.axhline(5.0, color=PALETTE[-1], linestyle=":", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=0.0)
    ticks = (0, 1, 5, 10, 50, 100, 500)
    axes.set_yticks(ticks, map(str, ticks))
    axes.set(xlabel="runs made", ylabel="cost above the lowest (%)")
    axes.legend(fontsize=8, frameon=False)
    return Figure(caption, svg(figure, caption))


def gaps_by_job(caption: str, gaps: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Median (mark) to 90th percentile (rule) of the gap to the lowest cost, by job and way of searching."""
    figure, axes = new_figure(6.4, 3.8)
    names = list(gaps)
    ways = list(next(iter(gaps.values())))
    for at, way in enumerate(ways):
        places = np.arange(len(names)) + 0.8 * (at - (len(ways) - 1) / 2) / max(1, len(ways))
        middle = np.array([100.0 * np.median(gaps[name][way]) for name in names])
        high = np.array([100.0 * np.quantile(gaps[name][way], 0.9) for name in names])
        colour = PALETTE[at % len(PALETTE)]
        axes.vlines(places, middle, high, color=colour, linewidth=1.5)
        axes.plot(places, middle, MARKERS[at % len(MARKERS)], color=colour, markersize=5, label=way, clip_on=False)
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("cost above the lowest (%)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return Figure(caption, svg(figure, caption))
