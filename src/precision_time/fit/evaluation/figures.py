"""Pictures of an evaluation as SVG text for the report: predicted over measured, errors by group, shares of errors.

Text stays text and black becomes the colour of the page's text, so that they read in light and in dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precision_time.errors import CatalogError, MissingExtraError
from precision_time.estimate.text import interval_text
from precision_time.fit.evaluation.accuracy import Judged, group_of
from precision_time.fit.evaluation.evaluation import Evaluation
from precision_time.fit.evaluation.text import percent
from precision_time.units import human_seconds

# Okabe and Ito's palette, without its yellow and black, and two more: told apart on white and on black.
_COLOURS = {
    "fp64": "#8C6BB1", "fp32": "#0072B2", "tf32": "#56B4E9", "amp-fp16": "#D55E00", "amp-bf16": "#009E73",
    "fp16-master": "#E69F00", "bf16-master": "#66A61E", "fp16": "#A6761D", "bf16": "#1B9E77", "fp8": "#CC79A7",
}  # fmt: skip
_OTHER = "#999999"
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p")
BAND = 0.2
"""Half width of the band around exact: the goal for any single precision is a mean error below this."""
MANY = 1500
"""Above so many rows single points would only blacken the error plots; boxes stay."""


def require_matplotlib(what: str = "the HTML report") -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            f"{what} needs matplotlib, which is not installed; run pip install 'precision-time[plot]'"
        )


def colour(precision: str) -> str:
    """The colour of a precision (of fp8 whatever its scaling)."""
    return _COLOURS.get(precision, _COLOURS["fp8"] if precision.startswith("fp8") else _OTHER)


def scatter(judged: Sequence[Judged]) -> str:
    """Predicted over measured, and below their ratio, where single errors can be told apart.

    One point per row, with a tooltip and a link to #rN, N the row's line in the table.
    """
    from matplotlib.ticker import NullLocator

    figure, (over, ratio) = _figure(8.6, 8.8, rows=2, height_ratios=(2.2, 1))
    archs = [_arch(j.row.gpu) for j in judged]
    markers = {arch: _MARKERS[i % len(_MARKERS)] for i, arch in enumerate(sorted(set(archs)))}
    for arch, marker in markers.items():
        points = [j for j, a in zip(judged, archs, strict=True) if a == arch]
        measured = [j.row.measured_s for j in points]
        for axes, heights in (
            (over, [j.step.p50 for j in points]),
            (ratio, [j.step.p50 / j.row.measured_s for j in points]),
        ):
            drawn = axes.scatter(
                measured, heights, s=26 if len(judged) <= 600 else 14, c=[colour(j.row.precision) for j in points],
                marker=marker, alpha=0.75, linewidths=0,
            )  # fmt: skip
            if axes is over or len(judged) <= MANY:
                drawn.set_urls([f"#r{j.row.line}" for j in points])
    values = [s for j in judged for s in (j.row.measured_s, j.step.p50)]
    ends = np.array([min(values) / 1.5, max(values) * 1.5])
    for axes, exact in ((over, ends), (ratio, np.ones(2))):
        axes.fill_between(ends, exact * (1 - BAND), exact * (1 + BAND), color="#888888", alpha=0.18, linewidth=0)
        axes.plot(ends, exact, color="black", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlim=ends)
        _in_seconds(axes.xaxis, ends)
        axes.grid(color="#888888", alpha=0.25, linewidth=0.6)
    over.set(ylim=ends, ylabel="predicted step (P50)")
    _in_seconds(over.yaxis, ends)
    factor = 1.15 * max(1.0 + BAND, *(max(v, 1 / v) for v in (j.step.p50 / j.row.measured_s for j in judged)))
    few = (0.01, 0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0, 100.0)
    steps = [s for s in (few if factor > 1.6 else (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)) if 1 / factor <= s <= factor]
    ratio.set_yticks(steps, [f"{s:g}x" for s in steps])
    ratio.yaxis.set_minor_locator(NullLocator())
    ratio.set(ylim=(1 / factor, factor), xlabel="measured step", ylabel="predicted / measured")
    precisions = sorted({j.row.precision for j in judged}, key=lambda name: [*_COLOURS, name].index(name))
    handles = [_dot(over, "o", colour(name)) for name in precisions]
    handles += [_dot(over, marker, "#888888") for marker in markers.values()]
    over.legend(handles, [*precisions, *markers], loc="upper left", frameon=False)
    return _with_tooltips(_svg(figure, "scatter"), judged)


def errors_by(judged: Sequence[Judged], grouping: str, names: Sequence[str]) -> str:
    """Signed error of each group: box from the first to the third quarter, whiskers at P5 and P95, every row a dot."""
    names = [name for name in names if any(group_of(j.row, grouping) == name for j in judged)]
    figure, axes = _figure(8.6, 1.1 + 0.36 * len(names))
    shuffle = np.random.default_rng(0)
    for index, name in enumerate(names):
        rows = [j for j in judged if group_of(j.row, grouping) == name]
        errors = [100 * j.error for j in rows]
        if len(judged) <= MANY:
            heights = index + shuffle.uniform(-0.28, 0.28, len(rows))
            colours = [colour(j.row.precision) for j in rows]
            axes.scatter(errors, heights, s=9, c=colours, alpha=0.6, linewidths=0)
        p5, q1, middle, q3, p95 = np.quantile(errors, (0.05, 0.25, 0.5, 0.75, 0.95))
        line = {"color": "black", "linewidth": 0.8}
        axes.barh(index, q3 - q1, left=q1, height=0.62, facecolor="none", edgecolor="black", linewidth=0.8)
        axes.plot([middle, middle], [index - 0.31, index + 0.31], color="black", linewidth=1.6)
        for end, quarter in ((p5, q1), (p95, q3)):
            axes.plot([end, quarter], [index, index], **line)
            axes.plot([end, end], [index - 0.15, index + 0.15], **line)
    axes.axvspan(-100 * BAND, 100 * BAND, color="#888888", alpha=0.14, linewidth=0)
    axes.axvline(0, color="black", linewidth=0.8)
    counts = {name: sum(group_of(j.row, grouping) == name for j in judged) for name in names}
    axes.set_yticks(range(len(names)), [f"{name} ({counts[name]:,})" for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -110 * BAND), max(right, 110 * BAND))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.0f}%" if value else "0%")
    axes.set_xlabel("error: predicted / measured - 1")
    axes.tick_params(axis="y", length=0)
    return _svg(figure, f"errors-{grouping}")


def shares(series: Mapping[str, Sequence[Judged]], dashed: str | None = None) -> str:
    """Share of rows whose |error| is at most so much, one line per series (grey: all; `dashed` the one to compare)."""
    figure, axes = _figure(8.6, 4.2)
    largest = 0.0
    for name, judged in series.items():
        sizes = np.sort([abs(j.error) for j in judged]) * 100
        largest = max(largest, float(np.quantile(sizes, 0.98)))
        whole = name == next(iter(series))
        style = {"color": "black" if whole else colour(name), "linewidth": 2.2 if whole else 1.3}
        if name == dashed:
            style = {"color": "black", "linewidth": 2.2, "linestyle": "--"}
        share = np.arange(1, len(sizes) + 1) / len(sizes) * 100
        axes.step([0, *sizes], [0, *share], where="post", label=f"{name} ({len(judged):,})", **style)
    axes.set_xlim(0, max(10.0, largest * 1.05))
    axes.set_ylim(0, 100.5)
    axes.axvline(100 * BAND, color="#888888", linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}%")
    axes.set_xlabel("|error| at most")
    axes.set_ylabel("share of rows")
    axes.grid(color="#888888", alpha=0.25, linewidth=0.6)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return _svg(figure, "shares")


def _figure(
    width: float, height: float, rows: int = 1, height_ratios: Sequence[float] | None = None
) -> tuple[Any, Any]:
    """A figure and its axes, one below the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, height_ratios=height_ratios, subplot_kw={"facecolor": "none"})
    for each in np.atleast_1d(axes):
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any, name: str) -> str:
    """The <svg> element, without the ids of groups (several pictures share a page) and without a date."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"precision-time {name}"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return re.sub(r"#000000|(?<=stroke: )black|(?<=fill: )black", "currentColor", text).strip()


def _with_tooltips(svg: str, judged: Sequence[Judged]) -> str:
    titles = {str(j.row.line): html.escape(tooltip(j)) for j in judged}

    def link(found: re.Match[str]) -> str:
        return f'<a href="#r{found[1]}"><title>{titles[found[1]]}</title>'

    return re.sub(r'<a xlink:href="#r(\d+)"[^>]*>', link, svg)


def tooltip(judged: Judged) -> str:
    """A row in a few lines."""
    row = judged.row
    return (
        f"{row.id}\n{row.precision}, {row.gpus} x {row.gpu}\nmeasured {human_seconds(row.measured_s)}, "
        f"predicted {interval_text(judged.step)}\nerror {percent(judged.error, sign='+')}"
    )


def _arch(gpu: str) -> str:
    from precision_time.hardware.catalog import default_catalog

    try:
        return default_catalog().gpu(gpu).arch
    except CatalogError:
        return gpu


def _dot(axes: Any, marker: str, face: str) -> Any:
    return axes.plot([], [], linestyle="", marker=marker, markersize=6, markeredgewidth=0, color=face)[0]


def _in_seconds(axis: Any, ends: Any) -> None:
    """Label powers of ten, and 2 and 5 times them where there are few."""
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


def blind_series(evaluation: Evaluation) -> dict[str, Sequence[Judged]]:
    """The lines of `shares`: all rows, then each precision; with a blind twin, aware against blind."""
    if evaluation.blind is not None:
        return {"aware": evaluation.aware, f"all as {evaluation.blind}": evaluation.judged}
    every: dict[str, Sequence[Judged]] = {"all rows": evaluation.judged}
    if len(evaluation.groups("precision")) > 1:
        for name in evaluation.groups("precision"):
            if rows := [j for j in evaluation.judged if j.row.precision == name]:
                every[name] = rows
    return every
