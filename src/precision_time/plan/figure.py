"""A plan as a picture: cost against time, the run's parts, and the probability of being done by a time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.estimate.goodput import LABELS
from precision_time.report import figure as figures
from precision_time.report.page import page
from precision_time.report.write import write_whole
from precision_time.units import unit_for

if TYPE_CHECKING:
    from precision_time.plan.options import Option
    from precision_time.plan.plan import Plan


def plot(plan: Plan, path: str | Path) -> None:
    """Write the picture at `path`, whose suffix is .png, .svg or .html; a failure leaves no file.

    Raises `JobError` for another suffix, `MissingExtraError` without matplotlib, `DataError` when it cannot be written.
    """
    kind = figures.image_kind(path)
    picture = _draw(plan)
    if kind == "html":
        body = f"<pre>{html.escape(str(plan))}</pre>"
        write_whole(path, page("Plan", [figures.svg(picture, "plan"), body]))
    else:
        write_whole(path, figures.image(picture, kind, name="plan"))


def _draw(plan: Plan) -> Any:
    figure, (map_axes, chance_axes, run_axes) = figures.new_figure(9.5, 9.5, rows=3, height_ratios=(3.2, 2.0, 0.5))
    _map(map_axes, plan)
    _chance(chance_axes, plan)
    _run(run_axes, plan.chosen)
    return figure


def _map(axes: Any, plan: Plan) -> None:
    """Time against cost, colour by GPU, size by count; the front joined, the choice marked."""
    options = _best(plan.options)
    scale, unit = unit_for(plan.chosen.objective("time"))
    names = list(dict.fromkeys(o.assessed.job.gpu for o in options))
    for place, name in enumerate(names):
        there = [o for o in options if o.assessed.job.gpu == name]
        axes.scatter(
            [o.objective("time") / scale for o in there],
            [o.objective("cost") for o in there],
            s=[12 + 12 * o.assessed.job.gpus**0.5 for o in there],
            color=figures.STACK[place % len(figures.STACK)],
            marker=figures.MARKERS[place % len(figures.MARKERS)],
            alpha=0.55,
            linewidths=0,
            label=name,
        )
    front = sorted(plan.front, key=lambda o: o.objective("time"))
    axes.plot([o.objective("time") / scale for o in front], [o.objective("cost") for o in front], color="black", lw=0.8)
    chosen = plan.chosen
    axes.scatter(
        [chosen.objective("time") / scale], [chosen.objective("cost")], s=190, facecolors="none", edgecolors="black"
    )
    job = chosen.assessed.job
    axes.annotate(
        f"{job.gpus} x {job.gpu}, {job.precision}",
        (chosen.objective("time") / scale, chosen.objective("cost")),
        xytext=(10, 10),
        textcoords="offset points",
        fontsize=9,
    )
    if plan.goal.deadline_hours is not None:
        axes.axvline(plan.goal.deadline_hours * 3600.0 / scale, color=figures.GREY, ls="--", lw=1)
    if plan.goal.budget_usd is not None:
        axes.axhline(plan.goal.budget_usd, color=figures.GREY, ls="--", lw=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    if all(o.objective("cost") > 0 for o in options):
        axes.set_yscale("log")
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted("${x:,.0f}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.set_xlabel(f"time of the run in the median ({unit}); dashed: deadline and budget", fontsize=9)
    axes.set_ylabel("cost in the median", fontsize=9)
    title = "time and cost by GPU type (colour) and number of GPUs (size); line: none is better"
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _best(options: Sequence[Option]) -> list[Option]:
    """The layout and micro-batch that is done first, of every GPU type, count, precision and provider."""
    kept: dict[tuple[object, ...], Option] = {}
    for option in sorted(options, key=lambda o: o.objective("time")):
        job = option.assessed.job
        kept.setdefault((job.gpu, job.gpus, job.precision, option.offer.provider, option.spot is None), option)
    return list(kept.values())


def _chance(axes: Any, plan: Plan) -> None:
    """The probability of being done by a time, of the chosen option and of the next of the front."""
    chosen = plan.chosen
    scale, unit = unit_for(chosen.objective("time"))
    others = [o for o in plan.front if o is not chosen]
    shown: Sequence[Option] = [chosen, *others[:: max(1, -(-len(others) // 3))]]
    limit = (plan.goal.deadline_hours or 0.0) * 3600.0
    most = max(max(o.finish.quantile(0.995) for o in shown), limit * 1.05)
    least = min(o.finish.quantile(0.005) for o in shown)
    times = [least + (most - least) * i / 300 for i in range(301)]
    for place, option in enumerate(shown):
        job = option.assessed.job
        axes.plot(
            [t / scale for t in times],
            [option.finish.probability(t) for t in times],
            color=figures.PALETTE[place],
            lw=2 if option is chosen else 1,
            label=f"{job.gpus} x {job.gpu}, {job.precision}",
        )
    if limit:
        axes.axvline(limit / scale, color=figures.GREY, ls="--", lw=1)
    axes.axhline(plan.goal.confidence, color=figures.GREY, ls=":", lw=1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"time from submission ({unit})", fontsize=9)
    axes.set_ylabel("probability of being done", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _run(axes: Any, option: Option) -> None:
    """The parts of the chosen run as one bar."""
    parts = option.assessed.parts or {}
    total = sum(parts.values()) or 1.0
    scale, unit = unit_for(total)
    left = 0.0
    for place, (name, seconds) in enumerate(parts.items()):
        share = seconds / total
        label = f"{LABELS[name]} {share:.1%}"
        axes.barh(0, seconds / scale, left=left, color=figures.STACK[place % len(figures.STACK)], label=label)
        left += seconds / scale
    axes.set_yticks([])
    axes.set_xlim(0, total / scale)
    axes.set_xlabel(f"the chosen run ({unit})", fontsize=9)
    axes.legend(fontsize=8, ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
