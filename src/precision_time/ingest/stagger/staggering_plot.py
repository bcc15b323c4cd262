"""A staggering as a picture: makespan over start offset in both orders with P10-P90, the best, and measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from precision_time.errors import IngestError
from precision_time.ingest.stagger.staggered_run import Measured
from precision_time.ingest.stagger.staggering import Staggering
from precision_time.report import figure as figures
from precision_time.report.write import write_whole
from precision_time.units import unit_for

KINDS = ("png", "svg")


def check_picture(path: str | Path) -> str:
    """The kind of picture that the suffix of `path` names.

    Raises `JobError` for another suffix than .png and .svg, `MissingExtraError` without matplotlib.
    """
    kind = figures.image_kind(path, KINDS)
    figures.require_matplotlib()
    return kind


def plot(answer: Staggering, path: str | Path, measured: Sequence[Measured] = ()) -> None:
    """Write the picture of two staggered jobs, with a point for each measured run.

    Raises `IngestError` for more than two jobs, and as `check_picture`.
    """
    kind = check_picture(path)
    if not answer.curves:
        raise IngestError("a picture is drawn of two jobs; leave --plot out for more")
    figure, axes = figures.new_figure(8.0, 4.6)
    scale, unit = unit_for(max(way.makespan_s for way in answer.others))
    names = answer.names
    for curve in answer.curves:
        colour = figures.PALETTE[curve.order[0] % 2]
        first, second = (names[job] for job in curve.order)
        x = curve.offsets_s / scale
        axes.fill_between(x, curve.low_s / scale, curve.high_s / scale, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, curve.makespan_s / scale, color=colour, linewidth=2, label=f"{first} first, {second} later")
        here = [run for run in measured if _order(run) in (curve.order, None)]
        axes.plot(
            [max(run.offsets_s) / scale for run in here],
            [run.makespan_s / scale for run in here],
            "o",
            color=colour,
            markerfacecolor="white",
            markersize=6,
            label="measured" if here and curve is answer.curves[0] else None,
        )
    best = answer.best
    axes.plot(
        [max(best.offsets_s) / scale],
        [best.makespan_s / scale],
        "*",
        color="black",
        markersize=13,
        zorder=5,
        label=f"best: {best.makespan_s / scale:.3g} {unit}",
    )
    serial = answer.others[-1].makespan_s / scale
    low, high = axes.get_ylim()
    if serial < high + 0.6 * (high - low):
        axes.axhline(serial, color=figures.GREY, linestyle="--", linewidth=1, label="one after the other")
    axes.set_xlabel(f"offset of the later job ({unit})")
    axes.set_ylabel(f"makespan ({unit})")
    axes.set_title("predicted makespan; the band is P10 to P90 of the calibration", fontsize=10)
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    write_whole(path, figures.image(figure, kind, name="staggering"))


def _order(run: Measured) -> tuple[int, ...] | None:
    """The order of two jobs; None if they started together, a point of both curves."""
    if not any(run.offsets_s):
        return None
    return (0, 1) if run.offsets_s[0] == 0 else (1, 0)
