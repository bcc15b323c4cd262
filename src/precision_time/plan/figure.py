"""A plan as a picture: cost against time, which goals can be met, the probability of being done, the run's parts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_time.estimate.goodput import LABELS
from precision_time.estimate.quantile import label
from precision_time.plan.options import distinct
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
    figure, (map_axes, goal_axes, chance_axes, run_axes) = figures.new_figure(
        9.5, 12.5, rows=4, height_ratios=(3.2, 2.6, 2.0, 0.5)
    )
    _map(map_axes, plan)
    _goals(goal_axes, plan)
    _chance(chance_axes, plan)
    _run(run_axes, plan.chosen)
    return figure


def _map(axes: Any, plan: Plan) -> None:
    """Time against cost, colour by GPU, size by count; the front joined, the choice marked."""
    options = distinct(plan.shown)
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
    if plan.quantile is not None:
        at = chosen.finish.quantile(plan.quantile) / scale, chosen.cost.quantile(plan.quantile)
        axes.plot(*([each] for each in at), **figures.FURTHER_QUANTILE)
        middle = chosen.objective("time") / scale, chosen.objective("cost")
        axes.plot(*zip(middle, at, strict=True), color="black", lw=0.8, ls=":")
    axes.annotate(
        _name(chosen),
        (chosen.objective("time") / scale, chosen.objective("cost")),
        xytext=(10, 10),
        textcoords="offset points",
        fontsize=9,
    )
    if plan.goal.deadline_hours is not None:
        axes.axvline(plan.goal.deadline_hours * 3600.0 / scale, color=figures.GREY, ls="--", lw=1)
    if plan.goal.budget_usd is not None:
        axes.axhline(plan.goal.budget_usd, color=figures.GREY, ls="--", lw=1)
    _scales(axes, all(o.objective("cost") > 0 for o in options))
    diamond = f"; diamond: {label(plan.quantile)} of the choice" if plan.quantile is not None else ""
    axes.set_xlabel(f"time of the run in the median ({unit}); dashed: deadline and budget{diamond}", fontsize=9)
    axes.set_ylabel("cost in the median", fontsize=9)
    title = "time and cost by GPU type (colour) and number of GPUs (size); line: none is better"
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _scales(axes: Any, priced: bool) -> None:
    """Time and, where all have a price, dollars in logarithms, labelled at 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    if priced:
        axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis) if priced else (axes.xaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("${x:,.0f}")
    axes.tick_params(labelsize=9)


def _name(option: Option) -> str:
    job = option.assessed.job
    names = [part.precision for part in job.schedule] or [job.precision]
    precision = names[0] if len(names) == 1 else f"{names[0]} {option.share:.0%}, {names[1]}"
    return f"{job.gpus} x {job.gpu}, {precision}"


def _goals(axes: Any, plan: Plan) -> None:
    """Deadlines and budgets that some option meets, by the confidence: above and right of each line."""
    levels = sorted({0.5, 0.75, plan.goal.confidence, 0.95})
    shown = [(level, _reach(plan.shown, level)) for level in levels]
    scale, unit = unit_for(plan.chosen.objective("time"))
    corners = [corner for _, front in shown for corner in front]
    limit_s, budget = (plan.goal.deadline_hours or 0.0) * 3600.0, plan.goal.budget_usd or 0.0
    longest = 1.5 * max([limit_s, *(seconds for seconds, _ in corners)]) / scale
    dearest = 1.5 * max([budget, *(usd for _, usd in corners)])
    for place, (level, front) in enumerate(shown):
        if not front:
            continue
        times = [front[0][0] / scale, *(seconds / scale for seconds, _ in front), longest]
        usd = [dearest, *(cost for _, cost in front), front[-1][1]]
        own = level == plan.goal.confidence
        colour = "black" if own else figures.PALETTE[place % len(figures.PALETTE)]
        axes.step(times, usd, where="post", lw=2 if own else 1, color=colour, label=f"with {level:.0%}")
        axes.fill_between(times, usd, dearest, step="post", color=figures.GREY, alpha=0.12, linewidth=0)
    if limit_s:
        axes.axvline(limit_s / scale, color=figures.GREY, ls="--", lw=1)
    if budget:
        axes.axhline(budget, color=figures.GREY, ls="--", lw=1)
    _scales(axes, bool(corners) and min(usd for _, usd in corners) > 0.0)
    axes.set_xlabel(f"deadline ({unit})", fontsize=9)
    axes.set_ylabel("budget", fontsize=9)
    axes.set_title("deadlines and budgets that can be met: right of and above a line", loc="left", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _reach(options: Sequence[Option], level: float) -> list[tuple[float, float]]:
    """(seconds, US dollars) of the least deadlines and budgets that options on demand meet with a probability."""
    corners = []
    for option in options:
        fits = option.assessed.fits
        if option.spot is None and fits >= level:  # time and cost are limits on one quantity, so they hold together
            sure = level / fits
            corners.append((option.finish.quantile(sure), option.cost.quantile(sure)))
    front: list[tuple[float, float]] = []
    for seconds, usd in sorted(corners):
        if not front or usd < front[-1][1]:
            front.append((seconds, usd))
    return front


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
        axes.plot(
            [t / scale for t in times],
            [option.finish.probability(t) for t in times],
            color=figures.PALETTE[place],
            lw=2 if option is chosen else 1,
            label=_name(option),
        )
    if limit:
        axes.axvline(limit / scale, color=figures.GREY, ls="--", lw=1)
    axes.axhline(plan.goal.confidence, color=figures.GREY, ls=":", lw=1)
    if plan.quantile is not None:
        axes.plot([chosen.finish.quantile(plan.quantile) / scale], [plan.quantile], **figures.FURTHER_QUANTILE)
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
