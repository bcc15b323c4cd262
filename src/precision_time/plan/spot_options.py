"""Options on spot instances, from the options on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

import numpy as np

from precision_time.errors import JobError
from precision_time.estimate.levels import Distribution
from precision_time.plan.goal import Goal
from precision_time.plan.options import Option, SpotShare
from precision_time.plan.spot import Market, Zone, played, work_levels


def spot_options(options: Sequence[Option], market: Market, goal: Goal) -> Iterator[Option]:
    """Each GPU type, count, precision and offer with a spot price, in the layout and micro-batch that is done first.

    A slower layout at equal prices is neither cheaper nor sooner done, so it is not played. Raises `JobError` for a job
    without checkpoints, whose work every interruption would undo.
    """
    best: dict[tuple[object, ...], Option] = {}
    for option in sorted(options, key=lambda o: o.objective("time")):
        job, price = option.assessed.job, option.offer.price
        if price is not None and price.spot_usd_per_hour is not None:
            key = (job.gpu, job.gpus, option.assessed.precision, option.offer.provider, price.instance)
            best.setdefault(key, option)
    zones = {count: market.zones(count) for count in {_instances(option) for option in best.values()}}
    for option in best.values():
        made = _on_spot(option, zones, goal)
        if made is not None:
            yield made


def unplanned(options: Sequence[Option], market: Market) -> list[tuple[int, str]]:
    """How many options have no counterpart on spot, and why."""
    spot = [o for o in options if o.spot is None and o.offer.price and o.offer.price.spot_usd_per_hour is not None]
    known = {count: bool(market.zones(count)) for count in {_instances(option) for option in spot}}
    unknown = sum(not known[_instances(option)] for option in spot)
    rest = sum(o.spot is None for o in options) - len(spot)
    trace = (
        "no trace of spot is published; give one of your own" if not market.counts else f"{market.name} has no spells"
    )
    reasons = [
        (rest, "options have no known spot price"),
        (unknown, f"options are of a number of instances for which {trace}"),
    ]
    return [(count, text) for count, text in reasons if count]


def _instances(option: Option) -> int:
    price = option.offer.price
    return ceil(option.assessed.job.gpus / price.gpus) if price else 0


def _on_spot(option: Option, known: Mapping[int, Sequence[Zone]], goal: Goal) -> Option | None:
    """The option on spot; None where no trace is of so many instances."""
    price = option.offer.price
    if price is None or price.spot_usd_per_hour is None:
        return None
    count = _instances(option)
    zones = known[count]
    if not zones:
        return None
    queue_h = (option.finish.quantiles[0] - option.wall.quantiles[0]) / 3600.0
    deadline_h = None if goal.deadline_hours is None else goal.deadline_hours - queue_h
    start_h = _start_hours(option)
    runs = played(work_levels(option.wall), zones, deadline_h, start_h, _checkpoint_hours(option))
    spot_usd, demand_usd = count * price.spot_usd_per_hour, option.usd_per_hour
    usd = runs.usd(spot_usd, demand_usd)
    in_time = np.ones(len(usd), dtype=np.bool_) if deadline_h is None else runs.finish_h <= deadline_h
    in_budget = np.ones(len(usd), dtype=np.bool_) if goal.budget_usd is None else usd <= goal.budget_usd
    wall = Distribution.of((runs.spot_h + runs.demand_h) * 3600.0)
    longer = wall.interval.p50 / option.wall.interval.p50  # starts and lost work draw power too
    return dataclasses.replace(
        option,
        finish=Distribution.of((runs.finish_h + queue_h) * 3600.0),
        wall=wall,
        cost=Distribution.of(usd),
        chance=option.assessed.fits * float((in_time & in_budget).mean()),
        in_time=float(in_time.mean()),
        in_budget=float(in_budget.mean()),
        energy_kwh=option.energy_kwh.scaled(longer) if option.energy_kwh else None,
        co2_kg=option.co2_kg.scaled(longer) if option.co2_kg else None,
        spot=SpotShare(
            float(runs.spot_h.mean()), float(runs.demand_h.mean()), float(option.cost.interval.p50 - usd.mean())
        ),
    )


def _start_hours(option: Option) -> float:
    """Of a start after an interruption: as the job gives it, or as its first start."""
    run, parts = option.assessed.job.run, option.assessed.parts or {}
    return (run.restart_s if run.restart_s is not None else parts.get("start_up", 0.0)) / 3600.0


def _checkpoint_hours(option: Option) -> float:
    """Between checkpoints."""
    run, step = option.assessed.job.run, option.assessed.step
    if run.checkpoint_every_s is not None:
        return run.checkpoint_every_s / 3600.0
    if run.checkpoint_every_steps is not None and step is not None:
        return run.checkpoint_every_steps * step.p50 / 3600.0
    raise JobError(
        "a run on spot loses what no checkpoint holds when its instance is taken; give checkpoint_every_s, and "
        "checkpoint_storage for the time that one takes"
    )
