"""One job in every (dp, tp, pp) of a world size by the additive model, as the paper does for LLaMA-3.1-8B on 8 H100s.

The samples of a step stay those of the job, and so does `grad_accum`: what changes is how many each data-parallel rank
gets (our reading; the paper's batch is not known to us).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from precision_time.errors import PrecisionTimeError, PredictorError
from precision_time.job.job import Job
from precision_time.predictors.additive import Added, Additive
from precision_time.predictors.interface import Forecast, MeasuredJob, global_batch_size


@dataclass(frozen=True, slots=True)
class LayoutForecast:
    """One layout: the job in it with its terms and forecast, or the reason why it is not possible."""

    dp: int
    tp: int
    pp: int
    job: Job | None = None
    added: Added | None = None
    forecast: Forecast | None = None
    why: str = ""

    @property
    def label(self) -> str:
        return f"dp={self.dp},tp={self.tp},pp={self.pp}"


def degrees(world_size: int) -> Iterator[tuple[int, int, int]]:
    """Every (dp, tp, pp) whose product is the world size, each once, the most data-parallel first."""
    if world_size < 1:
        raise PredictorError(f"world size {world_size} holds no ranks; give 1 or more")
    for dp in _divisors(world_size)[::-1]:
        for tp in _divisors(world_size // dp)[::-1]:
            yield dp, tp, world_size // dp // tp


def every_layout(job: Job, world_size: int, predictor: Additive | None = None) -> list[LayoutForecast]:
    """The job in every layout of `world_size` ranks, by `predictor` (None: one without profile on the job's device)."""
    if predictor is None:
        predictor = Additive()
        predictor.fit([MeasuredJob(job.model, job, 0.0, "")])
    samples = global_batch_size(job)
    return [_one(job, dp, tp, pp, samples, predictor) for dp, tp, pp in degrees(world_size)]


def _one(job: Job, dp: int, tp: int, pp: int, samples: int, predictor: Additive) -> LayoutForecast:
    parts = dp * job.grad_accum
    if samples % parts:
        why = f"{samples} samples a step are not shared out evenly over dp={dp} x {job.grad_accum} micro-steps"
        return LayoutForecast(dp, tp, pp, why=why)
    try:
        here = job.replace(gpus=dp * tp * pp, layout=f"tp={tp},pp={pp},dp={dp}", batch_size=samples // parts)
        return LayoutForecast(dp, tp, pp, here, predictor.added(here), predictor.predict(here))
    except PrecisionTimeError as error:
        return LayoutForecast(dp, tp, pp, why=str(error))


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
