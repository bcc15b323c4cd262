"""Which one measurement would narrow the best options of a plan most.

A measured step of an option's job corrects the predictions of similar jobs as any anchor does, so the new intervals are
those of the anchors' own model, with the step taken to be as predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.interval import Z90, Interval
from precision_time.job.job import Job
from precision_time.placement import cluster_of
from precision_time.plan.assess import Assessed
from precision_time.plan.options import Option
from precision_time.prediction import predict

if TYPE_CHECKING:
    from precision_time.plan.plan import Plan

BEST = 3
"""Options that a measurement should narrow."""
LEAST_GAIN = 0.05
"""Share by which the interval has to shrink for a measurement to be named."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step to be measured, and the mean half width of the best options' intervals before and after."""

    job: Job
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"job": self.job.to_dict(), "half_width_before": self.before, "half_width_after": self.after}

    def __str__(self) -> str:
        job = self.job
        return (
            f"one measured step of this job on {job.gpus} x {job.gpu} in {job.precision} would cut the interval of the "
            f"best options from +-{self.before:.0%} to +-{self.after:.0%}"
        )


def worth_measuring(plan: Plan) -> Measurement | None:
    """The measurement that narrows the best options of a plan most; None where none helps."""
    best = _distinct(plan.others)[:BEST]
    before = _width([option.assessed.step for option in best])
    found = [m for option in best if (m := _measured(option, best, before)) is not None]
    chosen = min(found, key=lambda m: m.after, default=None)
    return chosen if chosen and chosen.after < before * (1.0 - LEAST_GAIN) else None


def _distinct(options: tuple[Option, ...]) -> list[Option]:
    """The best option of every GPU type, count and precision."""
    kept: dict[tuple[object, ...], Option] = {}
    for option in options:
        job = option.assessed.job
        kept.setdefault((job.gpu, job.gpus, option.assessed.precision), option)
    return list(kept.values())


def _measured(option: Option, best: list[Option], before: float) -> Measurement | None:
    """The effect of measuring an option's step, on one node where its layout allows."""
    job = _small(option.assessed.job)
    try:
        step_s = predict(job).step.p50
        line = (
            f"gpu={job.gpu},gpus={job.gpus},precision={job.precision},batch_size={job.batch_size},"
            f"grad_accum={job.grad_accum},step_time_s={step_s!r}"
        )
        after = [_step(each.assessed, line) for each in best]
    except PrecisionTimeError:
        return None
    return Measurement(job, before, _width(after))


def _small(job: Job) -> Job:
    layout = job.layout_spec
    if job.schedule:  # the interval is that of the last precision's step
        job = job.replace(precision=job.schedule[-1].precision)
    if layout.tp != 1 or layout.pp != 1 or layout.cp != 1 or layout.ep != 1 or layout.zero:
        return job
    node = min(cluster_of(job).gpus_per_node, job.gpus)
    return job.replace(gpus=node, nodes=None)


def _step(option: Assessed, line: str) -> Interval:
    job = option.job
    return predict(job.replace(anchors=[*(job.anchors or ("published",)), line]), learned=option.learned).step


def _width(steps: Sequence[Interval | None]) -> float:
    """Mean half width of intervals, as a share: 0.18 for +-18 %."""
    spreads = [log(step.p90 / step.p10) / (2.0 * Z90) for step in steps if step is not None]
    mean = sqrt(sum(s * s for s in spreads) / len(spreads)) if spreads else 0.0
    return exp(Z90 * mean) - 1.0
