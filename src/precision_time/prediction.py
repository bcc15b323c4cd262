"""From a job to its estimate: job -> capture -> layout -> timing -> timeline -> estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from precision_time.anchoring import USUAL, Anchoring, correction_of
from precision_time.anchors.sources import Measured
from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.errors import InternalError, JobError
from precision_time.estimate.assemble import SimulatedStep, Supplements, assemble, grouped_share, process_bytes
from precision_time.estimate.assumptions import assumptions
from precision_time.estimate.correction import Correction
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.goodput import Goodput, Stepping, goodput
from precision_time.estimate.interval import Interval
from precision_time.estimate.learned import Corrections
from precision_time.estimate.memory import Memory
from precision_time.estimate.step_memory import step_memory
from precision_time.estimate.verified import verified
from precision_time.hardware.catalog import Catalog
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.ingest.pipeline.job_loader import loader_of
from precision_time.job.choices import COMPOSING, PLAIN
from precision_time.job.job import Job
from precision_time.job.precision import Precision, parse_precision
from precision_time.layout.options import Options
from precision_time.layout.program import StepProgram
from precision_time.layout.step_program import step_program
from precision_time.placement import catalog_of, cluster_of
from precision_time.timeline.trace import trace_events
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernels import compute_peak
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import TimedProgram, time_program
from precision_time.timing.registry import CURRENT
from precision_time.timing.scaled import Factors, scaled
from precision_time.without_collection import WithoutCollection

_TRANSFORMER_ENGINE = frozenset({"megatron", "megatron-bridge"})
"""Frameworks whose experts are Transformer Engine's GroupedLinear."""
_BEFORE_HOPPER = frozenset({"pascal", "volta", "turing", "ampere", "ampere-ga10x"})
_CUDNN_ATTENTION = frozenset({"hopper", "blackwell"})
"""Architectures on which PyTorch prefers cuDNN's attention since 2.11 (sdp_utils.cpp, check_prefer_cudnn_attention)."""
_EFFICIENT_ATTENTION = frozenset({"volta", "turing", "ampere", "ampere-ga10x", "ada", "blackwell-gb20x"})
"""Architectures on which the backward pass of NVIDIA's batch norms for MXNet read its tensors twice, as the forward
pass does on all: said by steps of ResNet-50 alone, of 2020 and 2021 on V100 and A100, and of MLPerf 2.1 to 4.0 on H100
and L40S."""


def predict(
    job: Job,
    *,
    catalog: Catalog | None = None,
    constants: StepConstants | None = None,
    anchoring: Anchoring = USUAL,
    learned: Corrections | None = None,
) -> Estimate:
    """Time, memory and cost of a job, with intervals, corrected by measured jobs of the model's family.

    `learned`: corrections by outcomes of the cluster's jobs, on top (`serve.learning`); every part of a schedule has
    its own.
    With other `constants` than those that ship no published row corrects. Raises a `PrecisionTimeError` for a job that
    cannot be (unknown model, missing peak ...); a job that does not fit in memory is estimated all the same and says
    so.
    """
    return _predict(job, catalog, constants, anchoring, 0.0, learned)


def predict_if_fits(job: Job, least_fit: float, learned: Corrections | None = None) -> Estimate | Memory:
    """The estimate of a job, or only its memory where that fits with a probability below `least_fit`.

    A search spends most of its time on jobs that fit; what does not is laid out but not timed.
    """
    try:
        return _predict(job, None, None, USUAL, least_fit, learned)
    except _TooLargeError as found:
        return found.memory


class _TooLargeError(Exception):
    """Ends the prediction of a job that fits less surely than is asked."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory


def _predict(
    job: Job,
    catalog: Catalog | None,
    constants: StepConstants | None,
    anchoring: Anchoring,
    least_fit: float,
    learned: Corrections | None = None,
) -> Estimate:
    with WithoutCollection():
        if job.schedule:
            return _scheduled(job, catalog, constants, anchoring, least_fit, learned)
        return _predict_one(job, job.precision_spec, catalog, constants, anchoring, least_fit, learned)


def _predict_one(
    job: Job,
    precision: Precision,
    catalog: Catalog | None,
    constants: StepConstants | None,
    anchoring: Anchoring,
    least_fit: float,
    learned: Corrections | None,
) -> Estimate:
    # 1. The device, its node and the fabric between ranks: first, because a wrong name fails here at once.
    known = catalog or catalog_of(job)
    cluster = cluster_of(job, known)
    compute_peak(cluster.gpu, precision.math, "")  # a precision the device has no unit for is an error, not a guess
    rental = known.rental(job.run.price, cluster) if job.run.price and job.run.price_per_gpu_hour is None else None
    # 2. and 3. Operators of a rank, and collectives between ranks.
    options = Options.of(job)
    step, program = rank_program(job, precision, cluster, options)
    # 4. Memory of the fullest stage.
    memory = step_memory(step, program, options, cluster.gpu.memory_bytes, process_bytes(cluster))
    if memory.fit_probability < least_fit:
        raise _TooLargeError(memory)
    # 5. and 6. Seconds of both, and the timeline.
    run = _simulated(job, precision, cluster, step, program, constants)
    # 7. The correction by measured jobs of the family.
    correction, unused = _correction(job, run, cluster, catalog, constants, anchoring)
    if (precision.tf32 or precision.tf32_convolutions) and correction.count and cluster.gpu.has("fp32"):
        full = simulate_step(job, parse_precision("fp32"), cluster, constants)
        full_s = full.step_s(_correction(job, full, cluster, catalog, constants, anchoring)[0].factors)
        limit = full_s / run.step_s(correction.factors)
        correction = correction.lowered(min(limit, 1.0))  # TF32 is allowed, not ordered
    # 8. The loader beside training, where the job has a `data` section.
    loader, filled = loader_of(job, run.step, cluster) if job.data else (None, ())
    # 9. A step as evaluations run it, of which the forward pass counts.
    evaluated = None
    if job.run.evaluation_samples:
        evaluated = _simulated(job, precision, cluster, step, program, constants, evaluates=True)
    # 10. The estimate, corrected by outcomes of the cluster where there are any: intervals, breakdown, memory, run.
    hosted = run.timed.offload.notes(job.offload, cluster.node.host_memory_bytes) if job.offload else ()
    told = assumptions(job, run.step, cluster.gpu, grouped_share(job, run.timed))
    notes = (*told, *hosted, *filled, *unused)
    events = partial(_trace, run.step.graph.modules, job)
    more = Supplements(notes, correction, rental, loader, events, learned, evaluated)
    return assemble(job, run, memory, cluster, more)


def _trace(modules: tuple[str, ...], job: Job, timed: TimedProgram, factors: Factors) -> dict[str, Any]:
    return trace_events(scaled(timed, factors), modules, job.signature())


def _correction(
    job: Job,
    run: SimulatedStep,
    cluster: Cluster,
    catalog: Catalog | None,
    constants: StepConstants | None,
    anchoring: Anchoring,
) -> tuple[Correction, tuple[str, ...]]:
    """The correction of a simulated step, and a note where given anchors go unused."""
    uncorrected = partial(_uncorrected, catalog, constants)
    usual = catalog is None and constants is None
    return correction_of(job, run, cluster.gpu, anchoring, constants is None, uncorrected, usual)


def simulate_step(
    job: Job, precision: Precision, cluster: Cluster, constants: StepConstants | None = None, evaluates: bool = False
) -> SimulatedStep:
    """One optimizer step of a job, not corrected by anchors. `evaluates`: modules run as `eval()` has them."""
    return _simulated(job, precision, cluster, *rank_program(job, precision, cluster), constants, evaluates)


def rank_program(
    job: Job, precision: Precision, cluster: Cluster, options: Options | None = None
) -> tuple[TrainingStep, StepProgram]:
    """The operators of a step, and those of every distinct rank with its collectives."""
    # From the zoo or traced now. The only hardware fact is whether it is a CPU.
    step = training_step(job, precision, cluster.gpu.device_type)
    return step, step_program(step, job.layout_spec, options or Options.of(job))


def _simulated(
    job: Job,
    precision: Precision,
    cluster: Cluster,
    step: TrainingStep,
    program: StepProgram,
    constants: StepConstants | None,
    evaluates: bool = False,
) -> SimulatedStep:
    # Seconds of every pass of every unit and of every collective, each with its source.
    options = dataclasses.replace(work_options(job, cluster.gpu, precision), evaluates=evaluates)
    timed = time_program(program, cluster, options, job.execution, constants)
    # The steady step: streams, stages and waits.
    return SimulatedStep.of(step, timed)


def work_options(job: Job, gpu: Gpu, precision: Precision | None = None) -> WorkOptions:
    """What a job decides about the kernels of a GPU, in its own precision or another."""
    chosen = precision or job.precision_spec
    return WorkOptions(
        tf32=chosen.tf32,
        channels_last=job.memory_format == "nhwc",
        grouped_kernels=job.grouped_kernels,
        tf32_convolutions=chosen.tf32_convolutions and gpu.has("tf32"),
        separate_experts=job.framework in _TRANSFORMER_ENGINE,
        magma=job.decomposes_by_magma,
        separate_statistics=job.framework == "mxnet" and gpu.arch in _BEFORE_HOPPER,
        composes=job.framework in COMPOSING,
        torch=job.torch_version or CURRENT,
        efficient_masks=_efficient_masks(job, gpu),
    )


def _efficient_masks(job: Job, gpu: Gpu) -> str:
    """`WorkOptions.efficient_masks`; other frameworks bring attention of their own."""
    if job.framework not in PLAIN or gpu.arch not in _EFFICIENT_ATTENTION | _CUDNN_ATTENTION:
        return ""
    return "learned" if gpu.arch in _CUDNN_ATTENTION and job.attention_kernel != "flash2" else "all"


def _uncorrected(
    catalog: Catalog | None, constants: StepConstants | None, measured: Measured
) -> tuple[TrainingStep, Gpu, Mapping[str, float], float]:
    """Step, GPU, terms and seconds of a measured job as predicted without anchors."""
    job = measured.job
    cluster = cluster_of(job, catalog)
    estimate = predict(job, catalog=catalog, constants=constants, anchoring=Anchoring(use=False))
    return training_step(job, None, cluster.gpu.device_type), cluster.gpu, estimate.breakdown, estimate.step.p50


def _scheduled(
    job: Job,
    catalog: Catalog | None,
    constants: StepConstants | None,
    anchoring: Anchoring,
    least_fit: float,
    learned: Corrections | None,
) -> Estimate:
    """A run whose precision changes: the last precision's step, the sum of all parts as the run, and the memory of the
    part that needs most."""
    parts = job.schedule
    estimates = [
        _predict_one(job, parse_precision(p.precision), catalog, constants, anchoring, least_fit, learned)
        for p in parts
    ]
    memory = max((estimate.memory for estimate in estimates), key=lambda memory: memory.peak_bytes)
    last = estimates[-1]
    if last.steps is None:
        raise JobError(
            "precision is a schedule, so the run needs a length: give epochs (with a dataset), steps or samples"
        )
    starts = [p.from_step for p in parts]
    if starts[-1] >= last.steps:
        raise JobError(
            f"precision schedule switches at from_step {starts[-1]}, but the run has {last.steps} steps; lower it"
        )
    lengths = [b - a for a, b in zip(starts, [*starts[1:], last.steps], strict=True)]
    spans = list(zip(estimates, starts, lengths, strict=True))
    whole = _whole(spans, last)
    total = whole.wall.interval

    def as_long(amount: Interval | None) -> Interval | None:
        """Cost or energy of the last precision's run, for the seconds of this one."""
        return total.scaled(amount.p50 / last.run.p50) if amount and last.run else None

    note = "; ".join(
        f"{p.precision} {e.step.p50:.4g} s x {n} steps" for p, e, n in zip(parts, estimates, lengths, strict=True)
    )
    known = (f"schedule: {note}; step, epoch and breakdown are those of {parts[-1].precision}", *last.assumptions)
    cost, energy = as_long(last.cost_usd), as_long(last.energy_j)
    return verified(
        dataclasses.replace(
            last, run=total, goodput=whole, cost_usd=cost, energy_j=energy, memory=memory, assumptions=known
        )
    )


def _whole(spans: list[tuple[Estimate, int, int]], last: Estimate) -> Goodput:
    """The parts of a run whose steps are these, `last` deciding what is around them."""
    if last.goodput is None or last.goodput.basis is None or last.steps is None:
        raise InternalError("a scheduled run has a length, so its last part has one")

    def total(seconds: Callable[[Estimate, int, int, str], float]) -> Interval:
        return Interval(*(sum(seconds(e, start, n, q) for e, start, n in spans) for q in ("p10", "p50", "p90")))

    training = total(lambda e, start, n, q: n * float(getattr(_train(e), q)))
    facts, alone = last.goodput.basis
    steps, stepping = last.steps, total(_stepping)
    # The loader's queue is filled at the start of every epoch, whatever the precision.
    filled = {q: getattr(alone.whole, q) - _stepping(last, 0, steps, q) for q in ("p10", "p50", "p90")}
    whole = Interval(**{q: getattr(stepping, q) + seconds for q, seconds in filled.items()})
    cold = sum(
        min(start + n, e.steps_per_epoch or 0) - start for e, start, n in spans if start < (e.steps_per_epoch or 0)
    )
    waits = alone.first_wait_s
    if last.loading is not None:  # of its own steps, and of the queue's filling
        waits += last.loading.first_stall_s * (cold - min(steps, last.steps_per_epoch or 0))
    floor_s = sum(e.floor_s * n for e, _, n in spans)
    return goodput(facts, Stepping(last.steps, last.steps_per_epoch, training, whole, waits, min(floor_s, whole.p10)))


def _train(estimate: Estimate) -> Interval:
    """The step without its wait for data."""
    if estimate.goodput is None or estimate.goodput.basis is None:
        return estimate.step
    stepping = estimate.goodput.basis[1]
    return stepping.training.scaled(1.0 / stepping.steps)


def _stepping(estimate: Estimate, start: int, steps: int, quantile: str) -> float:
    """Seconds of so many steps from step `start` of a run on; those of its first epoch wait for the cold cache."""
    cold, slow = 0, 0.0
    if estimate.loading is not None and estimate.steps_per_epoch is not None:
        cold = max(0, min(start + steps, estimate.steps_per_epoch) - start)
        slow = getattr(estimate.loading.first_step, quantile) * cold
    return slow + float(getattr(estimate.step, quantile)) * (steps - cold)
