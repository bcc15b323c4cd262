"""The options of a plan: a candidate with what it is rented from, judged against the goal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from precision_time.estimate.interval import Interval
from precision_time.estimate.levels import Distribution
from precision_time.estimate.quantile import quantile_of
from precision_time.plan.assess import Assessed
from precision_time.plan.goal import Goal
from precision_time.plan.offers import Offer

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class SpotShare:
    """Of a run on spot instances: hours on spot and on demand, and the dollars saved against on demand, on average."""

    spot_hours: float
    demand_hours: float
    saved_usd: float


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A candidate that fits, on rented GPUs.

    chance          of fitting, being in time and within the budget, all together
    in_time, in_budget   each alone
    energy_kwh      of the building, where the GPU's power is known; `co2_kg` where the grid is
    share           of the steps in the first precision of a schedule
    """

    assessed: Assessed
    offer: Offer
    finish: Distribution
    wall: Distribution
    usd_per_hour: float
    chance: float
    in_time: float
    in_budget: float
    energy_kwh: Interval | None
    co2_kg: Interval | None
    cost: Distribution
    """US dollars."""
    spot: SpotShare | None = None
    share: float = 1.0

    @property
    def rented(self) -> str:
        return self.offer.text(self.assessed.job.gpus) + (" on spot" if self.spot else "")

    def objective(self, name: str) -> float:
        """What is to be least, in the median; infinite where it is not known."""
        if name == "cost":
            return self.cost.median
        if name == "time":
            return self.finish.median
        amount = self.energy_kwh if name == "energy" else self.co2_kg
        return amount.p50 if amount else float("inf")

    def to_dict(self, quantile: float | None = None) -> dict[str, Any]:
        """Plain JSON values, with those at a further quantile."""
        job, cost = self.assessed.job, self.cost.interval
        step = self.assessed.step
        further = {} if quantile is None else {"quantile": self._at(quantile)}
        return {
            "gpu": job.gpu,
            "gpus": job.gpus,
            "precision": self.assessed.precision,
            "layout": job.layout,
            "batch_size": job.batch_size,
            "grad_accum": job.grad_accum,
            "recompute": job.recompute,
            "rented": self.offer.to_dict(job.gpus),
            "step_s": _quantiles(step) if step else None,
            "finish_s": _quantiles(self.finish.interval),
            "cost_usd": _quantiles(cost),
            "energy_kwh": _quantiles(self.energy_kwh) if self.energy_kwh else None,
            "co2_kg": _quantiles(self.co2_kg) if self.co2_kg else None,
            "fits": self.assessed.fits,
            "in_time": self.in_time,
            "in_budget": self.in_budget,
            "chance": self.chance,
            "spot": dataclasses.asdict(self.spot) if self.spot else None,
            "peak_bytes": self.assessed.peak_bytes,
            "job": job.to_dict(),
            **({"learned": learned.to_dict()} if (learned := self.assessed.learned) else {}),
            **further,
        }

    def brief(self) -> dict[str, Any]:
        """What a picture shows of it; time and cost in the median."""
        job = self.assessed.job
        named = {"gpu": job.gpu, "gpus": job.gpus, "precision": self.assessed.precision}
        return {**named, "finish_s": self.finish.median, "cost_usd": self.cost.median}

    def _at(self, probability: float) -> dict[str, float | None]:
        """Times and cost at a quantile."""
        step = self.assessed.step
        return {
            "probability": probability,
            "step_s": quantile_of(step, probability, self.assessed.floor_s) if step else None,
            "finish_s": self.finish.quantile(probability),
            "cost_usd": self.cost.quantile(probability),
        }


def _quantiles(interval: Interval) -> dict[str, float]:
    return {"p10": interval.p10, "p50": interval.p50, "p90": interval.p90}


def option_of(
    assessed: Assessed, offer: Offer, goal: Goal, pue: float, grams_per_kwh: float | None, share: float = 1.0
) -> Option:
    """The option. The limits on time and on cost are limits on one quantity, the time on the GPUs."""
    finish, wall = assessed.finish, assessed.wall
    if finish is None or wall is None:
        raise ValueError("an option needs a candidate with a run")
    usd = offer.usd_per_hour(assessed.job.gpus)
    queue_s = finish.quantiles[0] - wall.quantiles[0]
    in_time = in_budget = 1.0
    if goal.deadline_hours is not None:
        in_time = wall.probability(goal.deadline_hours * 3600.0 - queue_s)
    if goal.budget_usd is not None and usd > 0.0:
        in_budget = wall.probability(goal.budget_usd / usd * 3600.0)
    energy = assessed.energy_j.scaled(pue / JOULES_PER_KWH) if assessed.energy_j else None
    co2 = energy.scaled(grams_per_kwh / 1000.0) if energy and grams_per_kwh is not None else None
    cost = wall.scaled(usd / 3600.0)
    chance = assessed.fits * min(in_time, in_budget)  # the tighter limit decides
    return Option(assessed, offer, finish, wall, usd, chance, in_time, in_budget, energy, co2, cost, share=share)


def distinct(options: Iterable[Option]) -> list[Option]:
    """The layout and micro-batch that is done first, of every GPU type, count, precision and provider."""
    kept: dict[tuple[object, ...], Option] = {}
    for option in sorted(options, key=lambda o: o.objective("time")):
        job = option.assessed.job
        place = (job.gpu, job.gpus, option.assessed.precision, option.offer.provider, option.offer.reserved)
        kept.setdefault((*place, option.spot is None), option)
    return list(kept.values())


def front(options: Iterable[Option], objective: str = "cost") -> tuple[Option, ...]:
    """Options that no other beats in time and cost, and in the objective where it is another, by time."""
    names = tuple(dict.fromkeys(("time", "cost", objective)))
    kept: list[tuple[tuple[float, ...], Option]] = []
    for option in sorted(options, key=lambda o: tuple(o.objective(name) for name in names)):
        values = tuple(option.objective(name) for name in names)
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for other, _ in kept):
            kept.append((values, option))
    return tuple(option for _, option in kept)


def least(options: Sequence[Option], objective: str) -> Option:
    """The option with the least of the objective; of equal ones the one that is done first."""
    return min(options, key=lambda o: (o.objective(objective), o.objective("time")))
