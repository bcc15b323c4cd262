"""Pictures of the additive model's study, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.additive_errors import Judged, accuracy, precisions_of
from benchmarks.papers.additive_layouts import MODEL, WORLD, Beside
from benchmarks.papers.study import Figure
from precision_time.fit.evaluation.figures import _figure, _svg, colour

_TERMS = (("compute_s", "T_comp", "#0072B2"), ("data_s", "V_dp / B", "#D55E00"), ("tensor_s", "V_tp / B", "#E69F00"),
          ("pipeline_s", "T_comp (pp - 1)", "#BBBBBB"))  # fmt: skip


def by_precision(title: str, judged: Sequence[Judged]) -> Figure:
    """MAPE by the precision asked about: the model, the simulator, and the twin of each precision."""
    names = precisions_of(judged)
    ways = ["additive", "simulator", *(f"blind {name}" for name in names)]
    figure, axes = _figure(8.6, 1.2 + 0.13 * len(names) * (len(ways) + 2))
    height = 1.0 / (len(ways) + 1.5)
    for place, way in enumerate(ways):
        sizes = [accuracy([j for j in judged if j.measured.precision == name], way).mape for name in names]
        at = np.arange(len(names)) + (place - (len(ways) - 1) / 2) * height
        known = way.removeprefix("blind ")
        style = {"additive": "#333333", "simulator": "#999999"}.get(way) or colour(known)
        label = way if known == way else f"twin profiled in {known}"
        axes.barh(at, np.nan_to_num(sizes), height=0.9 * height, color=style, label=label)
        for y, size in zip(at, sizes, strict=True):
            if np.isfinite(size):
                axes.text(size, y, f" {size:.0f} %", va="center", fontsize=7.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean |error|, %")
    axes.set_ylabel("precision asked about")
    axes.margins(x=0.08)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return Figure(f"Additive model, simulator and precision-blind twins on {title}", _svg(figure, f"additive {title}"))


def layouts(found: Mapping[str, Sequence[Beside]]) -> Figure:
    """The four terms of every layout in the first precision, and the simulator as a mark."""
    precision = next(iter(found))
    possible = [each for each in found[precision] if each.by_equations.added is not None]
    figure, axes = _figure(8.6, 1.2 + 0.36 * len(possible))
    left = np.zeros(len(possible))
    places = np.arange(len(possible))
    for field, label, shade in _TERMS:
        width = np.array([getattr(e.by_equations.added.terms, field) for e in possible])  # type: ignore[union-attr]
        axes.barh(places, width, left=left, height=0.62, color=shade, label=label)
        left += width
    for marker, label, values in (
        ("D", "simulator", [e.simulator_s for e in possible]),
        ("|", "simulator, micro-batches", [e.simulator_micro_s for e in possible]),
    ):
        axes.plot(values, places, marker, color="black", markersize=6 if marker == "D" else 13, label=label)
    axes.set_yticks(places, [e.by_equations.label for e in possible])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("predicted step, s")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return Figure(
        f"{MODEL} on {WORLD} GPUs in {precision}: the published terms and the simulator", _svg(figure, "layouts")
    )
