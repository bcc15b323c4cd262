"""The page and the figure of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.replay.results import LEAST, RATES
from precision_time.report.errors import percent
from precision_time.report.figure import GREY, PALETTE, image, new_figure
from precision_time.report.table import Table

_TEXT = """\
# Corrections learned from outcomes: replay of published rows

Written by `python -m benchmarks.replay`; do not edit. {rows:,} published rows are the outcomes of {sources} sources.
Each is one cluster (of MLPerf each submitter), and its rows come by release, those of a release in the order of its
tables ([docs/serve.md](../../docs/serve.md#correction)). Every row is predicted by parameters, variances and first
intervals that were fitted without any row of its source, then by what the cluster's earlier rows taught. `static
anchors` are the shipped parameters with the shipped anchors, which saw the source, but not the same job. Errors are
means of |predicted / measured - 1|.

![error and coverage over the outcomes seen](replay.png)

## After five outcomes of other jobs

Outcomes of the same job are left out of `learned`. `signed` is the mean error, positive where predictions are too slow.

{others}

## Other questions

`5 to 9`: after five to nine outcomes of other jobs. `other models`: only outcomes of other models, five or more. `same
job`: after one outcome of the very job. `in P10-P90`: rows before which at least 30 outcomes were seen, those before,
and all rows within the uncorrected interval; `by others`: after 30, with the rate of the tails that all other sources
choose among {rates} ({rates_nested} of all rows; all sources together choose {rate}).

{questions}

## In random order

Rows of each source in three random orders, at most 400 of a source: the five outcomes before a row are then mostly of
other models on other GPUs.

{shuffled}

## Broken machines

A tenth of the outcomes is made two to five times slower before it is learned ({injected_runs} runs); errors are those
of what was measured. Learned: {clean} without them and {injected} with them. A running mean: {clean_mean} and
{injected_mean}.

## Speed

Learning an outcome took {learn_ms:.1f} ms of one core on average and {learn_p99:.0f} ms in the slowest hundredth, with
the next correction.
"""


def page(results: Mapping[str, Any]) -> str:
    injected, rates = results["injection"], results["rates"]
    return _TEXT.format(
        rows=results["all"]["rows"],
        sources=len(results["sources"]),
        others=_others(results["all"], results["sources"]),
        questions=_questions(results["all"], results["sources"], rates["sources"]),
        rates=", ".join(f"{rate:g}" for rate in RATES),
        rates_nested=percent(rates["settled"]),
        rate=f"{rates['by_all']:g}",
        shuffled=_others(results["shuffled"]["all"], results["shuffled"]["sources"]),
        injected_runs=injected["runs"],
        clean=percent(injected["learned"]["clean"]),
        injected=percent(injected["learned"]["injected"]),
        clean_mean=percent(injected["running"]["clean"]),
        injected_mean=percent(injected["running"]["injected"]),
        learn_ms=results["learn_ms"]["mean"],
        learn_p99=results["learn_ms"]["p99"],
    )


def _others(whole: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, each in {"all rows": whole, **sources}.items():
        part = each["after_others"]
        if part["n"] < LEAST:
            continue
        cells = [percent(part[key]) for key in ("plain", "running", "anchored", "others")]
        signed = [percent(part[key], sign="+") for key in ("signed_plain", "signed_all")]
        rows.append([name, f"{part['n']:,}", *cells, f"{part['others'] / part['plain']:.2f}", *signed])
    heads = ["source", "rows", "no correction", "running mean", "static anchors", "learned", "ratio"]
    return Table([*heads, "signed without", "signed learned"], rows).markdown()


def _questions(
    whole: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]], rates: Mapping[str, Mapping[str, Any]]
) -> str:
    rows = []
    for name, each in {"all rows": whole, **sources}.items():
        models, once, covered = each["other_models"], each["after_one_of_the_job"], each["coverage"]
        soon = each["soon_after_others"]
        rows.append(
            [
                name,
                f"{percent(soon['plain'])} to {percent(soon['others'])}" if soon["n"] >= LEAST else "-",
                f"{percent(models['plain'])} to {percent(models['learned'])}" if models["n"] >= LEAST else "-",
                f"{once['n']}",
                f"{percent(once['learned'])} ({percent(once['median'])})" if once["n"] else "-",
                f"{covered['n']:,}",
                *(
                    "-" if covered[key] is None else percent(covered[key])
                    for key in ("settled", "early", "shipped_width")
                ),
                f"{percent(rates[name]['settled'])} ({rates[name]['rate']:g})" if name in rates else "-",
            ]
        )
    heads = ["source", "5 to 9", "other models", "same job", "mean (median)", "after 30", "in P10-P90", "before"]
    return Table([*heads, "uncorrected", "by others"], rows).markdown()


def picture(results: Mapping[str, Any]) -> bytes:
    """A PNG: errors over the outcomes seen, and the share of outcomes within P10-P90."""
    figure, (errors, coverage) = new_figure(10.0, 4.0, columns=2)
    points = results["curve"]
    places = list(range(len(points)))
    labels = [_range(points, place) for place in places]
    for name, title, colour, style in (
        ("plain", "no correction", GREY, "-"),
        ("running", "running mean", PALETTE[4], "-"),
        ("anchored", "static anchors, which saw the source", PALETTE[3], ":"),
        ("learned", "learned", PALETTE[0], "-"),
    ):
        heights = [100.0 * point[name] for point in points]
        errors.plot(places, heights, style, color=colour, marker="o", markersize=4, label=title)
    errors.set(ylabel="mean error (%)", ylim=(0, None))
    errors.legend(frameon=False, fontsize=9)
    coverage.axhspan(77, 83, color=GREY, alpha=0.2, linewidth=0)
    for name, title, colour in (("inside_plain", "uncorrected", GREY), ("inside", "learned and adaptive", PALETTE[0])):
        heights = [100.0 * point[name] for point in points]
        coverage.plot(places, heights, color=colour, marker="o", markersize=4, label=title)
    coverage.set(ylabel="outcomes within P10-P90 (%)", ylim=(0, 100))
    coverage.legend(frameon=False, fontsize=9, loc="lower right")
    for axes in (errors, coverage):
        axes.set_xticks(places, labels, fontsize=8, rotation=35)
        axes.set_xlabel("outcomes of the cluster seen before")
        axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    return image(figure, "png", dpi=110)


def _range(points: list[Mapping[str, Any]], place: int) -> str:
    first = points[place]["outcomes"]
    if place + 1 == len(points):
        return f"{first}+"
    last = points[place + 1]["outcomes"] - 1
    return f"{first}" if first == last else f"{first}-{last}"
