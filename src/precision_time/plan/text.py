"""A plan as text: what to launch, the front, and why the rest was left out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_time.estimate.interval import Interval
from precision_time.estimate.quantile import label
from precision_time.report.table import Table
from precision_time.units import digits_for, human_seconds, unit_for

if TYPE_CHECKING:
    from precision_time.plan.options import Option
    from precision_time.plan.plan import Plan

SHOWN = 12
"""Options of the front that are listed."""
WIDTH = 110
_SHOWN_QUANTILE = 0.9


def text(plan: Plan) -> str:
    """The chosen option with its chances, the front as a table, the reasons and the basis."""
    from precision_time.plan.worth import worth_measuring

    parts = [_chosen(plan), *([_shares(plan)] if plan.by_share else []), _front(plan)]
    if plan.reasons:
        parts.append("left out:\n" + _lines(map(str, plan.reasons)))
    basis = list(plan.basis)
    if (measurement := worth_measuring(plan)) is not None:
        basis.append(str(measurement))
    parts.append("it rests on:\n" + _lines(basis))
    return "\n\n".join(parts)


def _lines(sentences: object) -> str:
    return "\n".join(
        textwrap.fill(str(s), WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
        for s in sentences  # type: ignore[attr-defined]
    )


def _chosen(plan: Plan) -> str:
    option, goal = plan.chosen, plan.goal
    row, job = option.assessed, option.assessed.job
    cost = option.cost.interval
    lines = [
        f"launch on {option.rented}: {job.gpus} x {job.gpu}, {row.precision}, {row.label}",
        f"  done in        {_range(option.finish.interval)}",
        f"  cost           ${cost.p50:,.2f} (${cost.p10:,.2f} to ${cost.p90:,.2f})",
    ]
    if (sure := plan.quantile) is not None:
        at = human_seconds(option.finish.quantile(sure))
        lines.append(f"  {label(sure):<14} done in {at}, ${option.cost.quantile(sure):,.2f}")
    if option.spot:
        spot = option.spot
        lines.append(
            f"  spot           {spot.spot_hours:,.1f} h on spot and {spot.demand_hours:,.1f} h on demand on average, "
            f"${spot.saved_usd:,.2f} less than on demand alone"
        )
    if option.energy_kwh:
        energy = option.energy_kwh
        lines.append(f"  energy         {energy.p50:,.1f} kWh ({energy.p10:,.1f} to {energy.p90:,.1f})")
    if option.co2_kg:
        co2 = option.co2_kg
        lines.append(f"  CO2            {co2.p50:,.1f} kg ({co2.p10:,.1f} to {co2.p90:,.1f}), grid {plan.space.grid}")
    chances = [f"fits in memory {row.fits:.0%}"]
    if goal.deadline_hours is not None:
        chances.append(f"in time {option.in_time:.0%}")
    if goal.budget_usd is not None:
        chances.append(f"within ${goal.budget_usd:,.0f} {option.in_budget:.0%}")
    lines.append(f"  chances        {', '.join(chances)}; together {option.chance:.0%}")
    return "\n".join(lines)


def _range(interval: Interval) -> str:
    scale, unit = unit_for(interval.p50)
    digits = digits_for(interval.p50 / scale)
    low, middle, high = (f"{v / scale:,.{digits}f}" for v in (interval.p10, interval.p50, interval.p90))
    return f"{middle} {unit} ({low} to {high})"


def _front(plan: Plan) -> str:
    mark = _mark(plan)
    heads = ["", "GPUs", "precision", "layout", "from", "done in", mark, "cost", mark, "chance"]
    shown = list(plan.front)
    if len(shown) > SHOWN:
        place = next((i for i, option in enumerate(shown) if option is plan.chosen), 0)
        start = min(max(place - SHOWN // 2, 0), len(shown) - SHOWN)
        shown = shown[start : start + SHOWN]
    lines = [_row(option, plan) for option in shown]
    named = "time and cost" + (f" and {plan.goal.objective}" if plan.goal.objective in ("energy", "co2") else "")
    head = (
        f"{plan.tried:,} candidates at a global batch of {plan.global_batch:,}; {len(plan.others):,} options meet the "
        f"goal, and none is better in {named} than {_these(len(plan.front))}:"
    )
    return f"{textwrap.fill(head, WIDTH)}\n\n{Table(heads, lines, left=5).text()}"


def _shares(plan: Plan) -> str:
    """The best option for every length of the first precision of a schedule."""
    schedule = plan.space.schedule
    heads = [f"in {schedule.first}" if schedule else "", "GPUs", "from"]
    heads += ["done in", _mark(plan), "cost", _mark(plan), "chance", ""]
    rows: list[list[str]] = []
    for option in plan.by_share:
        job = option.assessed.job
        length = f"{option.share:.0%}" + (" of the steps" if not rows else "")
        verdict = "" if option.chance >= plan.goal.confidence else "misses the goal"
        rows.append([length, f"{job.gpus} x {job.gpu}", *_figures(option, plan), verdict])
    head = f"{schedule}, the best option for every length of the first part:"
    return f"{head}\n\n{Table(heads, rows, left=3).text()}"


def _these(count: int) -> str:
    return "this one" if count == 1 else f"these {count}"


def _from(option: Option) -> str:
    """What is rented, in a word or two."""
    name = option.offer.price.instance if option.offer.price else option.offer.provider
    return name + (" spot" if option.spot else " reserved" if option.offer.reserved else "")


def _row(option: Option, plan: Plan) -> Sequence[str]:
    row = option.assessed
    mark = ">" if option is plan.chosen else ""
    return [mark, f"{row.job.gpus} x {row.job.gpu}", row.precision, row.label, *_figures(option, plan)]


def _mark(plan: Plan) -> str:
    """The quantile that tables show beside the median."""
    return label(_SHOWN_QUANTILE if plan.quantile is None else plan.quantile)


def _figures(option: Option, plan: Plan) -> list[str]:
    """What is rented, time, cost and chance."""
    sure = _SHOWN_QUANTILE if plan.quantile is None else plan.quantile
    finish, cost = option.finish, option.cost
    return [
        _from(option),
        human_seconds(finish.interval.p50),
        human_seconds(finish.quantile(sure)),
        f"${cost.interval.p50:,.2f}",
        f"${cost.quantile(sure):,.2f}",
        f"{option.chance:.0%}",
    ]
