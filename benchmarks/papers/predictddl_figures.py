"""Pictures of PredictDDL's study, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.papers.predictddl_ernest import Protocol
from benchmarks.papers.predictddl_held_out import Accuracy, Held
from benchmarks.papers.study import Figure
from precision_time.fit.evaluation.figures import _figure, _svg, colour

_OWN = "#000000"
_OTHERS = ("#D55E00", "#E69F00", "#56B4E9")
_MARKERS = ("o", "^", "s", "D")


def scatter(held: Sequence[Held]) -> Figure:
    """Predicted over measured seconds, each row by a predictor that never saw its network run."""
    figure, axes = _figure(7.2, 5.6)
    datasets = sorted({each.row.measured.dataset for each in held})
    for dataset, marker in zip(datasets, _MARKERS * len(datasets), strict=False):
        for precision in sorted({each.row.measured.precision for each in held}):
            mine = [
                each
                for each in held
                if (each.row.measured.dataset, each.row.measured.precision) == (dataset, precision)
            ]
            axes.scatter(
                [each.row.measured.seconds for each in mine], [each.seconds for each in mine], s=14, alpha=0.6,
                marker=marker, color=colour(precision), linewidths=0, label=f"{dataset}, {precision}",
            )  # fmt: skip
    seconds = [each.row.measured.seconds for each in held]
    ends = np.array([min(seconds), max(seconds)])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, ends / 1.2, ends * 1.2, color="#999999", alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, s")
    axes.set_ylabel("predicted for an unseen network, s")
    axes.legend(frameon=False)
    return Figure("PredictDDL on networks it never saw run (band: within 20 %)", _svg(figure, "predictddl scatter"))


def networks(protocols: Sequence[Protocol]) -> Figure:
    """Mean error of every unseen network: PredictDDL and Ernest with what each protocol gave it."""
    own = {name: error for name, (_, error) in protocols[0].by_network().items()}
    order = sorted(own, key=lambda name: own[name])
    figure, axes = _figure(8.2, 1.4 + 0.19 * len(order))
    places = np.arange(len(order))
    axes.hlines(places, 0.05, 10.0, color="#999999", linewidth=0.3, alpha=0.5)
    for protocol, shade, marker in zip(protocols, _OTHERS, _MARKERS, strict=False):
        errors = protocol.by_network()
        there = [(place, errors[name][0]) for place, name in zip(places, order, strict=True) if name in errors]
        axes.plot(
            [max(0.05, error) for _, error in there], [place for place, _ in there], marker, color=shade, markersize=5,
            label=f"Ernest, {protocol.name}",
        )  # fmt: skip
    axes.plot([own[name] for name in order], places, "D", color=_OWN, markersize=4.5, label="PredictDDL")
    axes.set_xscale("log")
    axes.set_yticks(places, [name.removeprefix("small-") for name in order])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0.05, 10.0)
    axes.set_xlabel("mean |error| of a network, 1 = 100 %")
    axes.legend(loc="lower right", frameon=False)
    return Figure("Errors network by network, PredictDDL having seen none of its runs", _svg(figure, "networks"))


def confidence(held: Sequence[Held]) -> Figure:
    """Mean error of every network and data set over the confidence in it."""
    figure, axes = _figure(6.6, 4.2)
    points: dict[tuple[str, str], list[Held]] = {}
    for each in held:
        points.setdefault((each.row.measured.job.model, each.row.measured.dataset), []).append(each)
    for strange, shade, label in ((False, "#0072B2", "like the training networks"), (True, "#D55E00", "flagged")):
        mine = [members for members in points.values() if members[0].strange is strange]
        axes.plot(
            [members[0].confidence for members in mine],
            [100.0 * float(np.mean([abs(m.error) for m in members])) for members in mine],
            "o", color=shade, alpha=0.75, markersize=5, label=label,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("confidence (cosine similarity to the nearest training network)")
    axes.set_ylabel("mean |error|, %")
    axes.legend(frameon=False)
    return Figure(
        "Confidence and error of unseen networks, one point a network and data set", _svg(figure, "confidence")
    )


def ablations(found: Mapping[str, Accuracy]) -> Figure:
    """Mean and median error of every design."""
    figure, axes = _figure(8.2, 0.9 + 0.34 * len(found))
    places = np.arange(len(found))
    means = [100.0 * each.mape for each in found.values()]
    axes.barh(places, means, height=0.62, color=["#0072B2", *["#999999"] * (len(found) - 1)])
    axes.plot(
        [100.0 * each.median for each in found.values()], places, "|", color="black", markersize=12, label="median"
    )
    for place, mean in zip(places, means, strict=True):
        axes.text(mean, place, f" {mean:.1f} %", va="center", fontsize=8)
    axes.set_yticks(places, list(found))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("mean |error| on unseen networks, %")
    axes.margins(x=0.1)
    return Figure("What each part is worth: designs on unseen networks", _svg(figure, "ablations"))
