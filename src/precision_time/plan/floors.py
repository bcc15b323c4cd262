"""The least time that a run can take: its arithmetic at the peak of the GPUs.

A candidate whose floor is over the deadline, or whose floor costs more than the budget, is left out without a
prediction; no such candidate can meet the goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from precision_time.capture.captured_model import resolve
from precision_time.errors import PrecisionTimeError
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job
from precision_time.prediction import predict
from precision_time.zoo.parallel import SPLITS

FEWER_PRODUCTS = 4.0
"""By how much the cheapest known algorithm of a convolution does fewer products than the direct one: Winograd's
F(4 x 4, 3 x 3) does 4 times fewer (Lavin and Gray 2016, arXiv:1509.09308)."""


@dataclass(frozen=True, slots=True)
class Work:
    """FLOP of a whole run by the unit that does them, as a peak of `Gpu.peaks`; nothing where they are not known."""

    flops: Mapping[str, float]

    @classmethod
    def of(cls, job: Job, precision: str, batch: int) -> Work:
        """The work of a job's run in a precision at a global batch, whatever the GPUs; recomputation is not in it."""
        one = job.replace(
            gpus=1, nodes=None, node=None, system=None, layout="dp", precision=precision, recompute="none",
            recompute_layers=None, recompute_method=None, offload=None, offload_ratio=1.0, grad_accum=1, epochs=None,
            samples=None, steps=1,
        )  # fmt: skip
        try:
            step = predict(one)
            samples = _samples(job.replace(precision=precision), batch)
        except PrecisionTimeError:
            return cls({})
        share = samples / (step.samples_per_s * step.step.p50)
        if resolve(job).entry.builder not in SPLITS:
            share /= FEWER_PRODUCTS
        return cls({math: flops * share for math, flops in step.flops_per_step.items()})

    def seconds(self, gpu: Gpu, count: int) -> float:
        """Least seconds on so many GPUs."""
        known = {math: flops for math, flops in self.flops.items() if gpu.peaks.get(math)}
        return sum(flops / gpu.peaks[math] for math, flops in known.items()) / count


def _samples(job: Job, batch: int) -> float:
    """Samples that the run trains on, at least."""
    if job.run.steps is not None:
        return float(job.run.steps * batch)
    if job.run.samples is not None:
        return float(job.run.samples)
    whole = predict(job)
    full = (whole.steps or 0) - ceil(job.run.epochs or 0.0)  # the last step of an epoch may be cut short
    return max(full, 0) * whole.samples_per_s * whole.step.p50
