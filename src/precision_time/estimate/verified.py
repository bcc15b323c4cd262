"""The check that every estimate passes where it is made: finite numbers, ordered quantiles, parts that equal totals.

An estimate that fails it is a defect of this package, never of the user's job, and is not returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import isfinite

from precision_time.errors import InternalError
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.goodput import Goodput

TOLERANCE = 1e-6
"""Relative. Sums of floats in another order differ in their last digits."""


def verified(estimate: Estimate) -> Estimate:
    """The estimate itself. Raises an `InternalError` that holds its job where the estimate contradicts itself."""
    for wrong in defects(estimate):
        job = json.dumps(estimate.job.to_dict(), default=str)
        raise InternalError(f"the estimate contradicts itself ({wrong}); please report it with its job: {job}")
    return estimate


def defects(estimate: Estimate) -> Iterator[str]:
    """What is wrong with an estimate, one phrase each; empty where all holds."""
    yield from _intervals(estimate)
    if estimate.goodput is not None:
        yield from _goodput(estimate.goodput)
    yield from _shares("sources", estimate.sources)
    yield from _shares("bound_shares", estimate.bound_shares)
    yield from _negative("breakdown", estimate.breakdown.items())
    yield from _differ("breakdown", sum(estimate.breakdown.values()), estimate.step.p50)
    yield from _negative("flops_per_step", estimate.flops_per_step.items())
    for group, seconds in estimate.communication.items():
        yield from _negative(f"communication {group}", seconds.items())
    yield from _negative("communication", [("hidden", estimate.communication_hidden_s)])
    yield from _rates(estimate)
    yield from _negative("memory", estimate.memory.by_category.items())
    if estimate.memory.stages and estimate.memory.peak_bytes != max(estimate.memory.stage_peaks):
        yield f"memory.peak_bytes {estimate.memory.peak_bytes} is not that of the fullest stage"


def _intervals(estimate: Estimate) -> Iterator[str]:
    floor_s = estimate.floor_s
    if not 0.0 <= floor_s < float("inf"):
        yield f"floor_s {floor_s!r}"
    for name, interval, least in (
        ("step", estimate.step, floor_s),
        ("epoch", estimate.epoch, floor_s * (estimate.steps_per_epoch or 0)),
        ("run", estimate.run, 0.0 if estimate.job.schedule else floor_s * (estimate.steps or 0)),
        ("cost_usd", estimate.cost_usd, 0.0),
        ("energy_j", estimate.energy_j, 0.0),
    ):
        if interval is not None:
            low, middle, high = interval.p10, interval.p50, interval.p90
            if not (0.0 <= low <= middle <= high and isfinite(high)):
                yield f"{name} {low!r}, {middle!r}, {high!r} is not ordered or not finite"
            elif low < least * (1.0 - TOLERANCE):
                yield f"P10 of {name} {low!r} is below the floor {least!r}"


def _goodput(goodput: Goodput) -> Iterator[str]:
    """Parts of a run that are ordered and whose medians add up."""
    for name, part in goodput.parts.items():
        if not (0.0 <= part.p10 <= part.p50 <= part.p90 and isfinite(part.p90)):
            yield f"{name} of the run {part.p10!r}, {part.p50!r}, {part.p90!r} is not ordered or not finite"
    total = goodput.from_submission().interval.p50
    yield from _differ("the run", sum(part.p50 for part in goodput.parts.values()), total)
    if any(low > high for low, high in pairwise(goodput.wall.quantiles)):
        yield "the quantiles of the run are not ordered"


def _rates(estimate: Estimate) -> Iterator[str]:
    """Samples, cost and energy follow from the times."""
    batch = estimate.samples_per_s * estimate.step.p50
    if not (isfinite(batch) and batch > 0.0):
        yield f"samples_per_s {estimate.samples_per_s!r}"
    price, run = estimate.job.run.price_per_gpu_hour, estimate.run
    if run is None:
        return
    if estimate.cost_usd is not None and price is not None:
        yield from _differ("cost_usd", estimate.cost_usd.p50, run.p50 / 3600.0 * price * estimate.job.gpus)
    for name, interval in (("cost_usd", estimate.cost_usd), ("energy_j", estimate.energy_j)):
        if interval is not None:
            yield from _differ(f"P90 of {name}", interval.p90 * run.p50, interval.p50 * run.p90)


def _shares(name: str, shares: Mapping[str, float]) -> Iterator[str]:
    yield from _negative(name, shares.items())
    yield from _differ(name, sum(shares.values()), 1.0)


def _negative(name: str, parts: Iterable[tuple[str, float]]) -> Iterator[str]:
    for part, value in parts:
        if not 0.0 <= value < float("inf"):
            yield f"{name}: {part} {value!r}"


def _differ(name: str, total: float, expected: float) -> Iterator[str]:
    if not abs(total - expected) <= TOLERANCE * abs(expected):
        yield f"{name} adds up to {total!r}, not to {expected!r}"
