"""The figure of the page: predicted over measured time of every held-out row, and of the twin blind to precision."""

from __future__ import annotations

from benchmarks.accuracy.steps import AWARE, Board
from precision_time.evaluation.rows import JudgedRow
from precision_time.report.errors import percent
from precision_time.report.figure import (
    Points,
    image,
    legend_dot,
    measured_vs_predicted,
    new_figure,
    precision_colour,
    precisions_in_order,
    ratio_axis,
)


def picture(board: Board) -> bytes:
    """A PNG of two panels with one scale."""
    figure, panels = new_figure(10.0, 4.8, columns=2, sharey=True)
    titles = {AWARE: "precision-time", board.best_twin: "its twin, blind to precision"}
    for axes, (run, title) in zip(panels, titles.items(), strict=True):
        trusted = board.trusted(run)
        measured, predicted = ([getter(j) for j in trusted.judged] for getter in (_measured, _predicted))
        colours = [precision_colour(j.row.precision) for j in trusted.judged]
        measured_vs_predicted(axes, [Points(measured, predicted, colours)], ratio=True)
        axes.set_title(f"{title}: mean error {percent(trusted.overall.mape)}", loc="left", fontsize=10.5)
    ratio_axis(panels[0], [_predicted(j) / _measured(j) for run in titles for j in board.trusted(run).judged])
    panels[1].set_ylabel("")
    names = precisions_in_order([j.row.precision for j in board.trusted(AWARE).judged])
    handles = [legend_dot(panels[0], precision_colour(name)) for name in names]
    figure.legend(
        handles, [f"measured in {name}" for name in names], loc="outside lower center", ncols=4, frameon=False
    )
    return image(figure, "png", dpi=110)


def _measured(judged: JudgedRow) -> float:
    return judged.row.measured_s


def _predicted(judged: JudgedRow) -> float:
    return judged.step.p50
