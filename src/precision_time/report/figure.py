"""Matplotlib figures in one style: palette, export to SVG and PNG, and the panels that several reports draw.

Matplotlib is imported only when a figure is drawn. Black and text take the colour of the page's text in `svg`, so that
a figure reads on light and on dark pages.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precision_time.errors import JobError, MissingExtraError

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's colours without yellow and black, told apart with any colour vision (jfly.uni-koeln.de/color)."""
STACK = (
    "#0072B2", "#56B4E9", "#009E73", "#B8A500", "#7A4FBF", "#CC79A7", "#999999", "#D55E00", "#E0B0A0", "#6E4B1F",
    "#4B5D67",
)  # fmt: skip
"""Colours of the parts of a stacked bar."""
GREY = "#888888"
FURTHER_QUANTILE = {"color": "black", "marker": "D", "markersize": 5, "linestyle": "none", "markeredgecolor": "white"}
"""The mark of a quantile that was asked for beside P10 and P90."""
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p")
_PRECISIONS = {
    "fp64": "#8C6BB1", "fp32": "#0072B2", "torch-fp32": "#2B8CBE", "tf32": "#56B4E9", "amp-fp16": "#D55E00",
    "amp-bf16": "#009E73", "fp16-master": "#E69F00", "bf16-master": "#66A61E", "fp16": "#A6761D",
    "bf16": "#1B9E77", "fp8": "#CC79A7",
}  # fmt: skip
BAND = 0.2
"""Half width of the grey band around exact predictions: errors up to 20 %."""
_RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_NARROW_RATIO_TICKS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)


def precision_colour(precision: str) -> str:
    """The colour of a precision (of fp8 whatever its scaling)."""
    return _PRECISIONS.get(precision, _PRECISIONS["fp8"] if precision.startswith("fp8") else PALETTE[-1])


def precisions_in_order(names: Sequence[str]) -> list[str]:
    """The distinct names in the order of the palette, unknown ones last."""
    return sorted(set(names), key=lambda name: (name not in _PRECISIONS, [*_PRECISIONS, name].index(name), name))


def require_matplotlib(what: str = "plot") -> None:
    """Raises `MissingExtraError` where matplotlib is not installed; nothing is imported."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            f"{what} needs matplotlib, which is not installed; run pip install 'precision-time[plot]'"
        )


def image_kind(path: str | Path, kinds: Sequence[str] = ("png", "svg", "html")) -> str:
    """The kind of picture that the suffix of `path` names. Raises `JobError` for another one."""
    kind = Path(path).suffix.lower()[1:]
    if kind not in kinds:
        *some, last = (f".{name}" for name in kinds)
        raise JobError(f"plot {str(path)!r} is no picture this can write; end it in {', '.join(some)} or {last}")
    return kind


def new_figure(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    height_ratios: Sequence[float] | None = None,
    sharey: bool = False,
) -> tuple[Any, Any]:
    """A matplotlib figure of `width` x `height` inches and its axes (one, or an array), without top and right spines.

    Raises `MissingExtraError` where matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, height_ratios=height_ratios, sharey=sharey, subplot_kw={"facecolor": "none"})
    for panel in np.atleast_1d(axes).flat:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def svg(figure: Any, name: str) -> str:
    """The <svg> element for an HTML page: no group ids (several figures share a page), no date; black is currentColor.

    `name` seeds the ids of shared parts, so that the same figure gives the same text.
    """
    text = image(figure, "svg", name=name).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return re.sub(r"#000000|(?<=stroke: )black|(?<=fill: )black", "currentColor", text).strip()


def image(figure: Any, kind: str, dpi: int = 150, name: str = "figure") -> bytes:
    """The content of a file of `kind` png (white background) or svg (no background, text as text)."""
    import matplotlib

    _take_text_literally(figure)
    out = io.BytesIO()
    metadata: dict[str, None] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"precision-time {name}"}):
        background = "white" if kind == "png" else "none"
        figure.savefig(out, format=kind, dpi=dpi, facecolor=background, metadata=metadata)
    return out.getvalue()


def _take_text_literally(figure: Any) -> None:
    """Draw names as they are: matplotlib reads what is between dollar signs as mathematics, and fails on most of it.

    The ticks of logarithmic axes, which matplotlib labels in that language, keep it.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for label in axis.get_ticklabels(which="both"):
                label.set_parse_math(isinstance(axis.get_major_formatter(), LogFormatter))


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one kind: measured and predicted seconds, colours (one, or one each), and links (one each or none)."""

    measured: Sequence[float]
    predicted: Sequence[float]
    colour: str | Sequence[str] = PALETTE[0]
    label: str = ""
    marker: str = "o"
    links: Sequence[str] = ()


def measured_vs_predicted(axes: Any, series: Sequence[Points], ratio: bool = False, size: float = 24.0) -> None:
    """Predicted over measured seconds, or their ratio, on logarithmic axes; the grey band holds errors up to 20 %."""
    values = [s for points in series for s in (*points.measured, *points.predicted)]
    ends = np.array([min(values) / 1.5, max(values) * 1.5])
    exact = np.ones(2) if ratio else ends
    axes.fill_between(ends, exact * (1 - BAND), exact * (1 + BAND), color=GREY, alpha=0.18, linewidth=0)
    axes.plot(ends, exact, color="black", linewidth=0.8)
    for points in series:
        heights = np.divide(points.predicted, points.measured) if ratio else points.predicted
        drawn = axes.scatter(
            points.measured,
            heights,
            s=size,
            c=points.colour,
            marker=points.marker,
            alpha=0.75,
            linewidths=0,
            label=points.label or None,
        )
        if points.links:
            drawn.set_urls(points.links)
    axes.set(xscale="log", yscale="log", xlim=ends, xlabel="measured")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    seconds_axis(axes.xaxis, ends)
    if ratio:
        ratio_axis(axes, [p / m for points in series for p, m in zip(points.predicted, points.measured, strict=True)])
    else:
        axes.set(ylim=ends, ylabel="predicted")
        seconds_axis(axes.yaxis, ends)


def ratio_axis(axes: Any, ratios: Sequence[float]) -> None:
    """A logarithmic vertical axis around 1 that holds all ratios, with few round labels ("0.7x")."""
    from matplotlib.ticker import NullLocator

    factor = 1.15 * max(1.0 + BAND, *(max(value, 1 / value) for value in ratios))
    choices = _RATIO_TICKS if factor > 1.6 else _NARROW_RATIO_TICKS
    steps = [step for step in choices if 1 / factor <= step <= factor]
    axes.set_yticks(steps, [f"{step:g}x" for step in steps])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(ylim=(1 / factor, factor), ylabel="predicted / measured")


def seconds_axis(axis: Any, ends: Sequence[float] | Any) -> None:
    """Label the powers of ten of a logarithmic axis in seconds, and 2 and 5 times them where there are few."""
    from matplotlib.ticker import NullFormatter

    few = ends[1] / ends[0] < 100
    axis.set_major_formatter(lambda seconds, _: _tick(seconds))
    axis.set_minor_formatter(
        (lambda seconds, _: _tick(seconds) if f"{seconds:e}"[0] in "25" else "") if few else NullFormatter()
    )


def _tick(seconds: float) -> str:
    """ "100 ms", "1000 s": no digits that a power of ten does not have."""
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= 0.999 * s), (1e-6, "us"))
    return f"{seconds / scale:g} {unit}"


def bars(
    axes: Any,
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    colours: Mapping[str, str] | None = None,
    form: str = "{:.0f} %",
) -> None:
    """Horizontal bars, one group per name from the top, one bar per series, each with its value; no bar for nan.

    `series` maps a label to one value per name, `colours` a label to its colour (default: the palette in turn).
    """
    height = 1.0 / (len(series) + 0.6 if len(series) == 1 else len(series) + 1.5)
    for place, (label, values) in enumerate(series.items()):
        colour = (colours or {}).get(label, PALETTE[place % len(PALETTE)])
        at = np.arange(len(names)) + (place - (len(series) - 1) / 2) * height
        axes.barh(at, np.nan_to_num(values), height=0.9 * height, color=colour, label=label)
        for y, value in zip(at, values, strict=True):
            if np.isfinite(value):
                axes.text(value, y, f" {form.format(value)}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.1)


def legend_dot(axes: Any, colour: str, marker: str = "o") -> Any:
    """A marker for a legend whose colours and shapes mean different things."""
    return axes.plot([], [], linestyle="", marker=marker, markersize=6, markeredgewidth=0, color=colour)[0]
