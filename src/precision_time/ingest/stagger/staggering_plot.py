"""A staggering as a picture: makespan over offset in both orders, with band, best and what was measured."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precision_time.errors import IngestError, MissingExtraError
from precision_time.ingest.stagger.staggered_run import Measured
from precision_time.ingest.stagger.staggering import Staggering
from precision_time.job.file import write_whole
from precision_time.units import unit_for

SUFFIXES = (".png", ".svg")
# Of Okabe and Ito's palette: told apart by people with any colour vision.
_COLOURS = ("#0072B2", "#D55E00")
_GREY = "#666666"


def check_picture(path: str | Path) -> str:
    """The kind of picture that the path asks for, or a sentence."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise IngestError(f"plot {str(path)!r} is no picture this can write; end it in {' or '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "plot needs matplotlib, which is not installed; run pip install 'precision-time[plot]'"
        ) from None
    return suffix[1:]


def plot(answer: Staggering, path: str | Path, measured: Sequence[Measured] = ()) -> None:
    """Write the picture; the suffix says which kind."""
    kind = check_picture(path)
    if not answer.curves:
        raise IngestError("a picture is drawn of two jobs; leave --plot out for more")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(8.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scale, unit = unit_for(max(way.makespan_s for way in answer.others))
    names = answer.names
    for curve in answer.curves:
        colour = _COLOURS[curve.order[0] % 2]
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
        axes.axhline(serial, color=_GREY, linestyle="--", linewidth=1, label="one after the other")
    axes.set_xlabel(f"offset of the later job ({unit})")
    axes.set_ylabel(f"makespan ({unit})")
    axes.set_title("predicted makespan; the band is P10 to P90 of the calibration", fontsize=10)
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150)
    write_whole(path, content.getvalue())


def _order(run: Measured) -> tuple[int, ...] | None:
    """Which of two jobs was first; None: together, which lies on both curves."""
    if not any(run.offsets_s):
        return None
    return (0, 1) if run.offsets_s[0] == 0 else (1, 0)
