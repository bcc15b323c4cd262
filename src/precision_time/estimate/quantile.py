"""What a step, an epoch, a run, its cost and its memory stay below with a chosen probability.

| quantity | distribution |
|---|---|
| step, epoch | log-normal on either side of the median, through P10 and P90, never below the physical floor |
| run | that of the sum of its parts (`goodput`) |
| cost, energy | in proportion to the run |
| memory | logistic in the logarithm of the peak, as fitted to published brackets |
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_time.errors import JobError
from precision_time.estimate.interval import Interval
from precision_time.estimate.levels import Distribution
from precision_time.field_types import number

if TYPE_CHECKING:
    from precision_time.estimate.estimate import Estimate
    from precision_time.estimate.memory import Memory

PROBABILITY = number(0.01, 0.999)


@dataclass(frozen=True, slots=True)
class AtQuantile:
    """Seconds, US dollars, joules and bytes that are not exceeded with `probability`, each taken alone.

    None where the estimate has no such quantity, as a run without a length.
    """

    probability: float
    step_s: float
    epoch_s: float | None
    run_s: float | None
    cost_usd: float | None
    energy_j: float | None
    peak_bytes: int

    @property
    def label(self) -> str:
        return label(self.probability)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def label(probability: float) -> str:
    """ "P95", "P99.9"."""
    return f"P{100.0 * probability:.6g}"


def probability_of(value: object) -> float:
    """A probability from 0.01 to 0.999. Raises `JobError` for another value, which names the share of a percentage."""
    try:
        return float(PROBABILITY("quantile", value))
    except JobError:
        try:
            percent = float(str(value).strip().lstrip("Pp").rstrip("%"))
        except ValueError:
            percent = 0.0
        if 1.0 <= percent <= 99.9:
            raise JobError(f"quantile {value!r} is no probability; for P{percent:g} give {percent / 100.0:g}") from None
        raise


def quantile_of(interval: Interval, probability: float, least: float = 0.0) -> float:
    """The quantile of a quantity of which P10, P50 and P90 are known, log-normal on either side of the median."""
    return max(Distribution.of_interval(interval).quantile(probability), min(least, interval.p10))


def at_quantile(estimate: Estimate, probability: float) -> AtQuantile:
    """The quantities of an estimate at one probability."""
    sure = probability_of(probability)
    epoch, run, goodput = estimate.epoch, estimate.run, estimate.goodput
    run_s = None
    if run is not None:
        run_s = goodput.wall.quantile(sure) if goodput is not None else quantile_of(run, sure)
    return AtQuantile(
        probability=sure,
        step_s=quantile_of(estimate.step, sure, estimate.floor_s),
        epoch_s=quantile_of(epoch, sure, estimate.floor_s * (estimate.steps_per_epoch or 0)) if epoch else None,
        run_s=run_s,
        cost_usd=_in_proportion(estimate.cost_usd, run, run_s),
        energy_j=_in_proportion(estimate.energy_j, run, run_s),
        peak_bytes=peak_bytes(estimate.memory, sure),
    )


def further(estimate: Estimate) -> dict[str, float | None]:
    """The quantities at the further quantile that an estimate shows, by name; empty where it shows none."""
    if estimate.quantile is None:
        return {}
    at = at_quantile(estimate, estimate.quantile)
    return {
        "step": at.step_s, "epoch": at.epoch_s, "run": at.run_s, "cost": at.cost_usd, "energy": at.energy_j,
        "memory": at.peak_bytes,
    }  # fmt: skip


def _in_proportion(amount: Interval | None, run: Interval | None, run_s: float | None) -> float | None:
    if amount is None or run is None or run_s is None or run.p50 <= 0.0:
        return None
    return amount.p50 * run_s / run.p50


def peak_bytes(memory: Memory, probability: float) -> int:
    """The peak of memory that is not exceeded with a probability."""
    return round(memory.peak_bytes * math.exp(memory.log_scale * math.log(probability / (1.0 - probability))))
