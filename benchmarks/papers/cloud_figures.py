"""Pictures of the studies of Ernest and CherryPick."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.papers.study import Figure

if TYPE_CHECKING:
    from benchmarks.papers.ernest import Judged

# Okabe and Ito's palette: told apart by people with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def scatter(caption: str, groups: Mapping[str, Sequence[Judged]]) -> Figure:
    """Predicted against measured seconds, both logarithmic; lines at equal, and at 20 % off."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = _axes(5.2, 4.6)
    every = [v for judged in groups.values() for j in judged for v in (j.predicted.seconds, j.measured_s)]
    low, high = min(every) / 1.2, max(every) * 1.2
    line = np.array([low, high])
    axes.plot(line, line, color="#333333", linewidth=1)
    for factor in (0.8, 1.2):
        axes.plot(line, factor * line, color="#999999", linewidth=0.8, linestyle=":")
    for at, (name, judged) in enumerate(groups.items()):
        axes.plot(
            [j.measured_s for j in judged], [j.predicted.seconds for j in judged], MARKS[at % len(MARKS)],
            color=COLOURS[at % len(COLOURS)], markersize=4, alpha=0.75, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("measured (s)", fontsize=9)
    axes.set_ylabel("predicted (s)", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return Figure(f"{caption}; dotted: 20 % off", _svg(figure))


def gap_by_runs(caption: str, curves: Mapping[str, Sequence[float]]) -> Figure:
    """Gap to the best cost (%) against runs made, a line for each way of searching."""
    figure, axes = _axes(6.4, 3.8)
    for at, (name, gaps) in enumerate(curves.items()):
        axes.plot(
            range(1, len(gaps) + 1), 100.0 * np.asarray(gaps), marker=MARKS[at % len(MARKS)], markersize=4,
            color=COLOURS[at % len(COLOURS)], label=name,
        )  # fmt: skip
    axes.axhline(5.0, color="#999999", linestyle=":", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=0.0)
    axes.set_yticks([0, 1, 5, 10, 50, 100, 500], ["0", "1", "5", "10", "50", "100", "500"])
    axes.set_xlabel("runs made", fontsize=9)
    axes.set_ylabel("cost above the best (%)", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return Figure(caption, _svg(figure))


def gaps_by_job(caption: str, gaps: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Median (mark) to ninth decile (line) of the gap to the best cost, by job and way of searching."""
    figure, axes = _axes(6.4, 3.8)
    names = list(gaps)
    ways = list(next(iter(gaps.values())))
    for at, way in enumerate(ways):
        places = np.arange(len(names)) + 0.8 * (at - (len(ways) - 1) / 2) / max(1, len(ways))
        middle = np.array([100.0 * np.median(gaps[name][way]) for name in names])
        high = np.array([100.0 * np.quantile(gaps[name][way], 0.9) for name in names])
        colour = COLOURS[at % len(COLOURS)]
        axes.vlines(places, middle, high, color=colour, linewidth=1.5)
        axes.plot(places, middle, MARKS[at % len(MARKS)], color=colour, markersize=5, label=way, clip_on=False)
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(bottom=0.0)
    axes.set_ylabel("cost above the best (%)", fontsize=9)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return Figure(caption, _svg(figure))


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure: Any = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
