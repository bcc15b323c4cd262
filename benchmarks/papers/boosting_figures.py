"""Pictures of the study of boosting, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.boosting_held_out import HeldOut
from benchmarks.papers.study import Figure
from precision_time.fit.evaluation.figures import BAND, _figure, _svg, colour
from precision_time.predictors.interface import MeasuredJob

_BARS = ("#0072B2", "#D55E00", "#009E73")


def ratios(
    measured: Sequence[MeasuredJob], runs: Mapping[str, HeldOut], names: Mapping[str, str],
    caption: str = "Boosting: predicted over measured step time of every held-out row", below: str = "measured step",
) -> Figure:  # fmt: skip
    """Predicted over measured of every held-out row, a panel for each run, coloured by precision."""
    from matplotlib.ticker import NullLocator

    names = {key: label for key, label in names.items() if key in runs}
    figure, panels = _figure(8.6, 0.6 + 2.3 * len(names), rows=len(names))
    panels = list(np.atleast_1d(panels))
    everything = [f.seconds / measured[i].seconds for key in names for i, f in runs[key].forecasts.items()]
    low, high = min(0.75, *everything) / 1.08, max(1.35, *everything) * 1.08
    ticks = [t for t in (0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0) if low <= t <= high]
    seconds = [each.seconds for each in measured]
    for axes, (key, label) in zip(panels, names.items(), strict=True):
        axes.axhspan(1 - BAND, 1 + BAND, color="#888888", alpha=0.18, linewidth=0)
        axes.axhline(1.0, color="black", linewidth=0.8)
        for precision in _precisions(measured):
            at = [i for i in runs[key].rows if measured[i].precision == precision]
            heights = [runs[key].forecasts[i].seconds / measured[i].seconds for i in at]
            axes.scatter(
                [measured[i].seconds for i in at], heights, s=20, color=colour(precision), alpha=0.75, linewidths=0,
                label=precision,
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", ylim=(low, high), xlim=(min(seconds) / 1.3, max(seconds) * 1.3))
        axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda s, _: f"{s:g} s" if s >= 1 else f"{1e3 * s:g} ms")
        axes.set_title(label, loc="left", fontsize=10)
        axes.grid(color="#888888", alpha=0.25, linewidth=0.6)
        axes.set_ylabel("predicted / measured")
    panels[-1].set_xlabel(f"{below} time")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return Figure(
        f"{caption}; the grey band is within 20 %",
        _svg(figure, f"{below} ratios"),
    )


def importance(models: Mapping[str, Sequence[tuple[str, float, float]]], top: int = 10) -> Figure:
    """Mean |SHAP| of the most telling features of each model: (feature, log seconds, share of gain)."""
    figure, panels = _figure(8.6, 0.8 + 0.27 * sum(min(top, len(found)) + 2 for found in models.values()), len(models))
    for axes, (name, found), shade in zip(np.atleast_1d(panels), models.items(), _BARS, strict=False):
        best = sorted(found, key=lambda each: -each[1])[:top]
        axes.barh(range(len(best)), [100 * (np.exp(size) - 1) for _, size, _ in best], height=0.7, color=shade)
        axes.set_yticks(range(len(best)), [feature for feature, _, _ in best])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("mean size of what the feature moves the predicted time by, %")
    return Figure("Feature importance by TreeSHAP, trained on all rows", _svg(figure, "boosting importance"))


def learning_curve(points: Mapping[str, Sequence[tuple[float, float]]], goal: float) -> Figure:
    """MAPE over the number of measured training rows; a line for each way to hold out."""
    figure, axes = _figure(8.6, 3.6)
    for (name, found), shade in zip(points.items(), _BARS, strict=False):
        counts, sizes = zip(*found, strict=True)
        axes.plot(counts, [100 * size for size in sizes], marker="o", color=shade, label=name)
        for count, size in found:
            axes.annotate(f"{100 * size:.1f}", (count, 100 * size), (0, 7), textcoords="offset points", ha="center",
                          fontsize=8)  # fmt: skip
    axes.axhline(100 * goal, color="#888888", linewidth=0.9, linestyle="--", label=f"published: {100 * goal:.1f} %")
    axes.set_ylim(0, 120 * max(goal, *(size for found in points.values() for _, size in found)))
    axes.set(xlabel="measured rows to train on", ylabel="MAPE of held-out rows, %")
    axes.grid(color="#888888", alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False)
    return Figure("Learning curve of boosting in grouped 5-fold cross-validation", _svg(figure, "boosting curve"))


def blindness(errors: Mapping[str, Mapping[str, float]]) -> Figure:
    """MAPE by the precision asked about: way -> precision -> MAPE."""
    asked = list(next(iter(errors.values())))
    figure, axes = _figure(8.6, 1.2 + 0.15 * len(asked) * (len(errors) + 2))
    height = 1.0 / (len(errors) + 1.5)
    for place, (way, found) in enumerate(errors.items()):
        at = np.arange(len(asked)) + (place - (len(errors) - 1) / 2) * height
        sizes = [100 * found.get(name, float("nan")) for name in asked]
        word = way.rpartition(" in ")[2]
        shade = "#333333" if way.startswith("aware") else "#999999" if "all rows" in way else colour(word)
        axes.barh(at, np.nan_to_num(sizes), height=0.9 * height, color=shade, label=way)
        for y, size in zip(at, sizes, strict=True):
            if np.isfinite(size):
                axes.text(size, y, f" {size:.0f} %", va="center", fontsize=7.5)
    axes.set_yticks(range(len(asked)), asked)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="MAPE of held-out rows, %", ylabel="precision asked about")
    axes.margins(x=0.1)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return Figure(
        "Precision-aware boosting and its blind twins, each trained on rows of one precision alone",
        _svg(figure, "boosting blindness"),
    )


def _precisions(measured: Sequence[MeasuredJob]) -> list[str]:
    return sorted({each.precision for each in measured})
