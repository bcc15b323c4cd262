"""Figures of the study of the additive model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.additive_errors import Judged, mape, precisions_of
from benchmarks.papers.additive_layouts import MODEL, WORLD, Beside
from benchmarks.papers.study import Figure
from precision_time.report.figure import PALETTE, bars, new_figure, precision_colour, svg

_TERMS = ("compute_s", "T_comp"), ("data_s", "V_dp / B"), ("tensor_s", "V_tp / B"), ("pipeline_s", "T_comp (pp - 1)")
_COLOURS = {"additive": "#333333", "simulator": PALETTE[-1]}


def by_precision(title: str, judged: Sequence[Judged]) -> Figure:
    """MAPE by the precision asked about: the model, the simulator, and the twin of each precision."""
    names = precisions_of(judged)
    ways = {"additive": "additive", "simulator": "simulator"}
    ways |= {f"blind {name}": f"twin profiled in {name}" for name in names}
    figure, axes = new_figure(8.6, 1.2 + 0.13 * len(names) * (len(ways) + 2))
    bars(
        axes,
        names,
        {label: [100.0 * mape(judged, way, name) for name in names] for way, label in ways.items()},
        {label: _COLOURS.get(way) or precision_colour(way.removeprefix("blind ")) for way, label in ways.items()},
    )
    axes.set(xlabel="mean |error|, %", ylabel="precision asked about")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return Figure(f"Additive model, simulator and precision-blind twins on {title}", svg(figure, f"additive {title}"))


def layouts(by_layout: Mapping[str, Sequence[Beside]]) -> Figure:
    """The four terms of every layout in the first precision, with the simulator as a mark."""
    precision = next(iter(by_layout))
    possible = [(each, each.by_equations.added) for each in by_layout[precision] if each.by_equations.added is not None]
    figure, axes = new_figure(8.6, 1.2 + 0.36 * len(possible))
    left = np.zeros(len(possible))
    places = np.arange(len(possible))
    for (field, label), shade in zip(_TERMS, (PALETTE[0], PALETTE[1], PALETTE[4], "#BBBBBB"), strict=True):
        width = np.array([getattr(added.terms, field) for _, added in possible])
        axes.barh(places, width, left=left, height=0.62, color=shade, label=label)
        left += width
    for marker, label, values in (
        ("D", "simulator", [each.simulator_s for each, _ in possible]),
        ("|", "simulator, micro-batches", [each.simulator_micro_s for each, _ in possible]),
    ):
        axes.plot(values, places, marker, color="black", markersize=6 if marker == "D" else 13, label=label)
    axes.set_yticks(places, [each.by_equations.label for each, _ in possible])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("predicted step, s")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return Figure(f"{MODEL} on {WORLD} GPUs in {precision}: published terms and simulator", svg(figure, "layouts"))
