"""Figures of the study of boosting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.judging import Runs, precisions_in_order
from benchmarks.papers.study import Figure
from precision_time.report.figure import (
    GREY,
    PALETTE,
    Points,
    bars,
    measured_vs_predicted,
    new_figure,
    precision_colour,
    svg,
)


def ratios(
    runs: Runs,
    names: Mapping[str, str],
    caption: str = "Boosting: predicted over measured step time of every held-out row",
) -> Figure:
    """Predicted over measured of every held-out row, a panel for each run, coloured by precision."""
    names = {key: label for key, label in names.items() if key in runs}
    figure, panels = new_figure(8.6, 0.6 + 2.3 * len(names), rows=len(names))
    panels = list(np.atleast_1d(panels))
    for axes, (key, label) in zip(panels, names.items(), strict=True):
        points = []
        for precision in precisions_in_order([each.measured for each in runs[key]]):
            some = [each for each in runs[key] if each.measured.precision == precision]
            measured, predicted = [each.measured.seconds for each in some], [each.forecast.seconds for each in some]
            points.append(Points(measured, predicted, precision_colour(precision), precision))
        measured_vs_predicted(axes, points, ratio=True, size=20)
        axes.set_title(label, loc="left", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return Figure(f"{caption}; the grey band is within 20 %", svg(figure, caption))


def importance(models: Mapping[str, Sequence[tuple[str, float, float]]], top: int = 10) -> Figure:
    """Mean |SHAP| of the most telling features of each model: (feature, log seconds, share of gain)."""
    height = 0.8 + 0.27 * sum(min(top, len(features)) + 2 for features in models.values())
    figure, panels = new_figure(8.6, height, len(models))
    for axes, (name, features), shade in zip(np.atleast_1d(panels), models.items(), PALETTE, strict=False):
        best = sorted(features, key=lambda each: -each[1])[:top]
        axes.barh(range(len(best)), [100 * (np.exp(size) - 1) for _, size, _ in best], height=0.7, color=shade)
        axes.set_yticks(range(len(best)), [feature for feature, _, _ in best])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("mean size of what the feature moves the predicted time by, %")
    return Figure("Feature importance by TreeSHAP, trained on all rows", svg(figure, "boosting importance"))


def learning_curve(points: Mapping[str, Sequence[tuple[float, float]]], goal: float) -> Figure:
    """MAPE over the number of measured training rows; a curve for each way to hold out."""
    figure, axes = new_figure(8.6, 3.6)
    for (name, curve), shade in zip(points.items(), PALETTE, strict=False):
        counts, sizes = zip(*curve, strict=True)
        axes.plot(counts, [100 * size for size in sizes], marker="o", color=shade, label=name)
        for count, size in curve:
            place = (count, 100 * size)
            axes.annotate(f"{100 * size:.1f}", place, (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.axhline(100 * goal, color=GREY, linewidth=0.9, linestyle="--", label=f"published: {100 * goal:.1f} %")
    axes.set_ylim(0, 120 * max(goal, *(size for curve in points.values() for _, size in curve)))
    axes.set(xlabel="measured rows to train on", ylabel="MAPE of held-out rows, %")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False)
    return Figure("Learning curve of boosting in grouped 5-fold cross-validation", svg(figure, "boosting curve"))


def blindness(errors: Mapping[str, Mapping[str, float]]) -> Figure:
    """MAPE by the precision asked about: way -> precision -> MAPE."""
    asked = list(next(iter(errors.values())))
    figure, axes = new_figure(8.6, 1.2 + 0.15 * len(asked) * (len(errors) + 2))
    colours = {
        way: "#333333" if way.startswith("aware") else PALETTE[-1] if "all rows" in way else _trained_in(way)
        for way in errors
    }
    bars(axes, asked, {way: [100 * by.get(name, np.nan) for name in asked] for way, by in errors.items()}, colours)
    axes.set(xlabel="MAPE of held-out rows, %", ylabel="precision asked about")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    caption = "Precision-aware boosting and its blind twins, each trained on rows of one precision alone"
    return Figure(caption, svg(figure, "boosting blindness"))


def _trained_in(way: str) -> str:
    return precision_colour(way.rpartition(" in ")[2])
