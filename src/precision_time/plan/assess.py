"""One candidate of a plan: whether it fits, how long it runs, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_time.errors import PrecisionTimeError
from precision_time.estimate.memory import Memory
from precision_time.prediction import predict_if_fits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from precision_time.estimate.interval import Interval
    from precision_time.estimate.learned import Corrections, Learned
    from precision_time.estimate.levels import Distribution
    from precision_time.job.job import Job


@dataclass(frozen=True, slots=True)
class Assessed:
    """What a plan keeps of a candidate's estimate.

    fits            probability that the peak of memory fits
    missing_bytes   by which the median of the peak does not; of a candidate that was not laid out, at least
    floor_s         physical floor of a step
    finish          from submission to the end; `wall`: on the GPUs; None without a length of the run
    parts           seconds of the run by part, in the median
    learned         what outcomes of the cluster's jobs changed; of a schedule, its last part
    error           why there is no estimate; then the other fields are empty
    """

    job: Job
    fits: float = 0.0
    peak_bytes: int = 0
    missing_bytes: int = 0
    step: Interval | None = None
    finish: Distribution | None = None
    wall: Distribution | None = None
    floor_s: float = 0.0
    energy_j: Interval | None = None
    samples_per_s: float = 0.0
    mfu: float | None = None
    sources: Mapping[str, float] | None = None
    rests_on: tuple[str, ...] = ()
    parts: Mapping[str, float] | None = None
    learned: Learned | None = None
    error: str | None = None

    @property
    def predicted(self) -> bool:
        return self.step is not None

    @property
    def precision(self) -> str:
        """The precision, or those of a schedule with the step of each change."""
        parts = self.job.schedule
        later = (f", {part.precision} from step {part.from_step:,}" for part in parts[1:])
        return self.job.precision + "".join(later)

    @property
    def label(self) -> str:
        """Layout, micro-batch and recomputation in one word each."""
        job = self.job
        recompute = "" if job.recompute == "none" else f" · recompute {job.recompute}"
        return f"{job.layout} · {job.batch_size} x {job.grad_accum}{recompute}"


def assess_batches(jobs: Sequence[Job], least_fit: float = 0.5, learned: Corrections | None = None) -> list[Assessed]:
    """Candidates that differ in their micro-batch alone, the smallest first, at one global batch.

    A larger micro-batch needs no less memory, as long as as many are in flight. So once one fits with a probability
    below `least_fit`, larger ones are not laid out and have its figures: they miss by no less.
    """
    rows: list[Assessed] = []
    unfit: Assessed | None = None
    for job in jobs:
        if unfit is not None and _as_many_in_flight(job):
            rows.append(Assessed(job, unfit.fits, unfit.peak_bytes, unfit.missing_bytes))
            continue
        rows.append(assess(job, least_fit, learned))
        if unfit is None and not rows[-1].predicted and not rows[-1].error:
            unfit = rows[-1]
    return rows


def _as_many_in_flight(job: Job) -> bool:
    """Whether a stage holds as many micro-batches as with more of them in a step, and gradients are kept as then: with
    one micro-batch they appear during its backward pass. GPipe holds all of them."""
    layout = job.layout_spec
    return job.grad_accum >= 2 * layout.pp and layout.schedule != "gpipe"


def assess(job: Job, least_fit: float = 0.5, learned: Corrections | None = None) -> Assessed:
    """The candidate; its time is not predicted where it fits with a probability below `least_fit`."""
    try:
        found = predict_if_fits(job, least_fit, learned)
    except PrecisionTimeError as error:
        return Assessed(job, error=str(error))
    if isinstance(found, Memory):
        return Assessed(job, found.fit_probability, found.peak_bytes, found.missing_bytes)
    estimate, memory, goodput = found, found.memory, found.goodput
    return Assessed(
        job=job,
        fits=memory.fit_probability,
        peak_bytes=memory.peak_bytes,
        missing_bytes=memory.missing_bytes,
        step=estimate.step,
        finish=goodput.from_submission() if goodput else None,
        wall=goodput.wall if goodput else None,
        floor_s=estimate.floor_s,
        energy_j=estimate.energy_j,
        samples_per_s=estimate.samples_per_s,
        mfu=estimate.utilisation.mfu if estimate.utilisation else None,
        sources=dict(estimate.sources),
        rests_on=tuple(use.id for use in estimate.anchors.nearest),
        parts={name: part.p50 for name, part in goodput.parts.items()} if goodput else None,
        learned=estimate.learned,
    )
