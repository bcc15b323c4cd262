"""Which measured jobs correct an estimate, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from precision_time.anchors.anchor import Anchor, describe_job
from precision_time.anchors.base import published, shipped_covariance
from precision_time.anchors.posterior import Anchors
from precision_time.anchors.sources import Measured, given_anchors, wants_published
from precision_time.bounded_cache import STRUCTURES, bounded
from precision_time.capture.training_step import TrainingStep
from precision_time.errors import PrecisionTimeError
from precision_time.estimate.assemble import SimulatedStep, step_terms
from precision_time.estimate.correction import NONE, Correction
from precision_time.hardware.gpu import Gpu
from precision_time.job.job import Job

Uncorrected = Callable[[Measured], tuple[TrainingStep, Gpu, Mapping[str, float], float]]


@dataclass(frozen=True, slots=True)
class Anchoring:
    """Which anchors may correct an estimate, besides the job's own `anchors` field.

    use         False: no anchor corrects
    without     fields; an anchor that equals the job in all of them is left out: ("key",) leaves out the job itself,
                ("family",) every anchor
    framework   that the job ran in (None: the job's), since other frameworks have other kernels
    """

    use: bool = True
    without: tuple[str, ...] = ()
    framework: str | None = None


USUAL = Anchoring()
UNUSED_ANCHORS = (
    "no given anchor is of this model's family in the same framework and arithmetic, so none corrects the estimate"
)


def correction_of(
    job: Job,
    run: SimulatedStep,
    gpu: Gpu,
    anchoring: Anchoring,
    base: bool,
    uncorrected: Uncorrected,
    usual: bool = True,
) -> tuple[Correction, tuple[str, ...]]:
    """The correction of a simulated step, and a note where given anchors go unused.

    `base`: whether the published rows may correct. They do not where the estimate rests on other constants than those
    that ship, on a calibrated device, or where the job excludes them. `uncorrected` predicts a measured job without
    anchors: its step, GPU, terms and seconds, which are always the same where it is `usual`.
    """
    if not anchoring.use:
        return NONE, ()
    base = base and gpu.calibration is None and wants_published(job.anchors)
    given = given_anchors(job) if job.anchors else []
    anchors = published() if base else None
    if given:
        # Those of files are the same for all jobs of a comparison; one on a line takes its fields from the job.
        repeats = usual and not any(measured.on_line for measured in given)
        anchors = (_kept_anchors if repeats else _with_own)(_Given(tuple(given), base, uncorrected))
    correction = NONE
    if anchors is not None:
        terms = step_terms(run.timeline)
        descriptor = describe_job(job, run.step, gpu, terms, anchoring.framework or job.framework)
        correction = anchors.correction(descriptor, run.step_s, anchoring.without)
    unused = set(job.anchors) - {"none", "published"} and not correction.count
    return correction, (UNUSED_ANCHORS,) if unused else ()


@dataclass(frozen=True, slots=True)
class _Given:
    """The user's anchors, and whether the published ones join them."""

    measured: tuple[Measured, ...]
    base: bool
    uncorrected: Uncorrected = field(compare=False)


def _with_own(given: _Given) -> Anchors:
    own = [_predicted(measured, given.uncorrected) for measured in given.measured]
    kept = not any(measured.on_line for measured in given.measured)
    return Anchors([*(published() if given.base else ()), *own], shipped_covariance(), kept)


_kept_anchors = bounded(budget=STRUCTURES)(_with_own)


def _predicted(measured: Measured, uncorrected: Uncorrected) -> Anchor:
    try:
        found = uncorrected(measured)
    except PrecisionTimeError as error:
        raise type(error)(f"anchors {measured.id!r}: {error}") from None
    return _anchor(measured, *found)


def _anchor(measured: Measured, step: TrainingStep, gpu: Gpu, terms: Mapping[str, float], predicted_s: float) -> Anchor:
    """A measured job with what is predicted for it."""
    descriptor = describe_job(measured.job, step, gpu, terms, measured.framework)
    return Anchor(descriptor, measured.id, measured.source, measured.trust, measured.measured_s, predicted_s, own=True)
