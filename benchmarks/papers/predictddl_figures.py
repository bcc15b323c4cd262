"""Figures of the study of PredictDDL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.predictddl_ernest import Protocol
from benchmarks.papers.predictddl_held_out import Held, accuracy
from benchmarks.papers.study import Figure
from precision_time.report.figure import (
    GREY,
    MARKERS,
    PALETTE,
    Points,
    bars,
    measured_vs_predicted,
    new_figure,
    precision_colour,
    svg,
)


def scatter(held: Sequence[Held]) -> Figure:
    """Predicted over measured seconds, each row by a predictor that was trained without its network."""
    figure, axes = new_figure(7.2, 5.6)
    groups: dict[tuple[str, str], list[Held]] = {}
    for each in sorted(held, key=lambda each: (each.row.measured.dataset, each.row.measured.precision)):
        groups.setdefault((each.row.measured.dataset, each.row.measured.precision), []).append(each)
    markers = dict(zip(sorted({dataset for dataset, _ in groups}), MARKERS * len(groups), strict=False))
    points = [
        Points(
            [each.row.measured.seconds for each in members],
            [each.seconds for each in members],
            precision_colour(precision),
            f"{dataset}, {precision}",
            markers[dataset],
        )
        for (dataset, precision), members in groups.items()
    ]
    measured_vs_predicted(axes, points, size=14)
    axes.legend(frameon=False)
    return Figure("PredictDDL on unseen networks; the grey band is within 20 %", svg(figure, "predictddl scatter"))


def networks(protocols: Sequence[Protocol]) -> Figure:
    """Mean error of every unseen network: PredictDDL, and Ernest with the runs of each protocol."""
    predictddl = {name: error for name, (_, error) in protocols[0].by_network().items()}
    order = sorted(predictddl, key=lambda name: predictddl[name])
    figure, axes = new_figure(8.2, 1.4 + 0.19 * len(order))
    places = np.arange(len(order))
    axes.hlines(places, 0.05, 10.0, color=GREY, linewidth=0.3, alpha=0.5)
    for protocol, shade, marker in zip(protocols, PALETTE[1:], MARKERS, strict=False):
        errors = protocol.by_network()
        there = [(place, errors[name][0]) for place, name in zip(places, order, strict=True) if name in errors]
        sizes = [max(0.05, error) for _, error in there]
        label = f"Ernest, {protocol.name}"
        axes.plot(sizes, [place for place, _ in there], marker, color=shade, markersize=5, label=label)
    axes.plot([predictddl[name] for name in order], places, "D", color="black", markersize=4.5, label="PredictDDL")
    axes.set(xscale="log", xlim=(0.05, 10.0), xlabel="mean |error| of a network, 1 = 100 %")
    axes.set_yticks(places, [name.removeprefix("small-") for name in order])
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right", frameon=False)
    return Figure("Mean error of each network by predictors trained without its runs", svg(figure, "networks"))


def confidence(held: Sequence[Held]) -> Figure:
    """Mean error of every network and data set over the confidence in it."""
    figure, axes = new_figure(6.6, 4.2)
    points: dict[tuple[str, str], list[Held]] = {}
    for each in held:
        points.setdefault((each.row.measured.job.model, each.row.measured.dataset), []).append(each)
    for strange, shade, label in ((False, PALETTE[0], "like the training networks"), (True, PALETTE[1], "flagged")):
        some = [members for members in points.values() if members[0].strange is strange]
        errors = [100.0 * float(np.mean([abs(m.error) for m in members])) for members in some]
        confidences = [members[0].confidence for members in some]
        axes.plot(confidences, errors, "o", color=shade, alpha=0.75, markersize=5, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("confidence (cosine similarity to the nearest training network)")
    axes.set_ylabel("mean |error|, %")
    axes.legend(frameon=False)
    caption = "Confidence and error of unseen networks, one point for each network and data set"
    return Figure(caption, svg(figure, "confidence"))


def ablations(designs: Mapping[str, Sequence[Held]]) -> Figure:
    """Mean and median error of every design."""
    figure, axes = new_figure(8.2, 0.9 + 0.34 * len(designs))
    statistics = [accuracy(held) for held in designs.values()]
    means = [100.0 * (each.mape or 0.0) for each in statistics]
    bars(axes, list(designs), {"mean": means}, form="{:.1f} %")
    medians = [100.0 * (each.median_ape or 0.0) for each in statistics]
    axes.plot(medians, np.arange(len(designs)), "|", color="black", markersize=12, label="median")
    axes.set_xlabel("mean |error| on unseen networks, %")
    return Figure("Designs of PredictDDL on unseen networks", svg(figure, "ablations"))
