"""The picture of the board: predicted over measured of every held-out row, and of the twin blind to precision."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from precision_time.fit.board.runs import AWARE, Board
from precision_time.fit.evaluation.accuracy import Judged
from precision_time.fit.evaluation.figures import BAND, colour
from precision_time.fit.evaluation.text import percent

_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0)


def picture(board: Board) -> bytes:
    """PNG, two panels with one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10.0, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {AWARE: "precision-time", board.best_twin: "its twin, blind to precision"}
    for axes, (run, title) in zip(panels, titles.items(), strict=True):
        found = board.trusted(run)
        _panel(axes, found.judged)
        axes.set_title(f"{title}: off by {percent(found.overall.mape)} on average", loc="left", fontsize=10.5)
    ratios = [j.step.p50 / j.row.measured_s for run in titles for j in board.trusted(run).judged]
    low, high = min(ratios) / 1.1, max(ratios) * 1.1
    ticks = [t for t in _TICKS if low <= t <= high]
    panels[0].set(ylim=(low, high), ylabel="predicted / measured step time")
    panels[0].set_yticks(ticks, [f"{t:g}x" for t in ticks])
    precisions = board.trusted(AWARE).groups("precision")
    handles = [_dot(panels[0], colour(name)) for name in precisions]
    figure.legend(handles, [f"measured in {name}" for name in precisions], loc="outside lower center", ncols=4,
                  frameon=False)  # fmt: skip
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _panel(axes: Any, judged: tuple[Judged, ...]) -> None:
    from matplotlib.ticker import NullLocator

    measured = [j.row.measured_s for j in judged]
    axes.axhspan(1 - BAND, 1 + BAND, color="#888888", alpha=0.18, linewidth=0)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.scatter(
        measured, [j.step.p50 / j.row.measured_s for j in judged], s=24, c=[colour(j.row.precision) for j in judged],
        alpha=0.75, linewidths=0,
    )  # fmt: skip
    ends = np.array([min(measured) / 1.3, max(measured) * 1.3])
    axes.set(xscale="log", yscale="log", xlim=ends, xlabel="measured step time")
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#888888", alpha=0.25, linewidth=0.6)


def _dot(axes: Any, face: str) -> Any:
    return axes.plot([], [], linestyle="", marker="o", markersize=6, markeredgewidth=0, color=face)[0]
