"""The whole line, top to bottom: job -> capture -> layout -> seconds -> timeline -> estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from precision_time.anchors.anchor import OWN, Anchor, describe_job
from precision_time.anchors.base import published, shipped_covariance
from precision_time.anchors.posterior import Anchors
from precision_time.anchors.sources import Measured, given_anchors, wants_published
from precision_time.capture.layered_step import LayeredStep, layered_step
from precision_time.capture.training_step import TrainingStep, training_step
from precision_time.errors import JobError
from precision_time.estimate.assemble import assemble, process_bytes, step_terms
from precision_time.estimate.correction import NONE, Correction
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.interval import Interval
from precision_time.estimate.memory import memory
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.gpu import Gpu
from precision_time.ingest.pipeline.job_loader import loader_of
from precision_time.job.job import Job
from precision_time.job.precision import Precision, parse_precision
from precision_time.layered_prediction import is_layered, predict_layers
from precision_time.layout.data_parallel import data_parallel
from precision_time.timeline.simulate import simulate
from precision_time.timeline.trace import trace_events
from precision_time.timing.constants import StepConstants
from precision_time.timing.kernels import compute_peak
from precision_time.timing.operators import WorkOptions
from precision_time.timing.program_times import time_program


@dataclass(frozen=True, slots=True)
class Anchoring:
    """Which anchors may correct an estimate, beyond what the job itself says.

    use         False: none at all
    without     what no anchor may have in common with the job, all of it: ("key",) leaves out the job itself,
                ("family",) all that could say anything
    framework   of the job; others' measurements say less about it
    source      repository or document that a measured job is from; `OWN` for the user's
    """

    use: bool = True
    without: tuple[str, ...] = ()
    framework: str = "pytorch"
    source: str = OWN


USUAL = Anchoring()


def predict(
    job: Job,
    *,
    catalog: Catalog | None = None,
    constants: StepConstants | None = None,
    anchoring: Anchoring = USUAL,
) -> Estimate:
    """Time, memory and cost of a job, with intervals, corrected by the measured jobs that are like it.

    With other `constants` than those that ship no published row corrects: the base is what these leave.
    Raises a `PrecisionTimeError` for a job that cannot be (unknown model, missing peak ...); a job that does not fit
    in memory is estimated all the same and says so.
    """
    if job.schedule:
        return _scheduled(job, catalog, constants, anchoring)
    return _predict_one(job, job.precision_spec, catalog, constants, anchoring)


def _predict_one(
    job: Job,
    precision: Precision,
    catalog: Catalog | None,
    constants: StepConstants | None,
    anchoring: Anchoring,
) -> Estimate:
    # 1. Where: the device, its node and the fabric between ranks. First, because a wrong name fails at once here.
    known = catalog or _catalog(job.device)
    cluster = _cluster(known, job.gpu, job.gpus, job.system or job.node, job.nodes)
    compute_peak(cluster.gpu, precision.math, "")  # a precision the device has no unit for is an error, not a guess
    rental = known.rental(job.run.price, cluster) if job.run.price and job.run.price_per_gpu_hour is None else None
    if is_layered(job):
        correct = partial(_correction, job, cluster.gpu, catalog, constants, anchoring)
        return predict_layers(job, precision, cluster, constants, correct, rental)
    # 2. What runs: operators with their dtypes, from the zoo or traced now. Knows of hardware only CPU or not.
    step = training_step(job, precision, cluster.gpu.device_type)
    # 3. Who reduces what with whom: one program, since all data-parallel ranks are equal.
    program = data_parallel(step, cluster.gpus, job.grad_accum, job.no_sync, job.communication_dtype)
    # 4. Seconds on every operator, launch and bucket, each with its source.
    options = WorkOptions(tf32=precision.tf32, channels_last=job.memory_format == "nhwc")
    timed = time_program(program, cluster, options, job.execution, constants)
    # 5. Streams: what waits for what.
    timeline = simulate(timed)
    # 6. What measured jobs like this one say about it.
    correction, unheard = _correction(job, cluster.gpu, catalog, constants, anchoring, step, step_terms(timeline))
    # 7. The loader beside training, where the job says what it reads.
    loader, filled = loader_of(job, step, cluster) if job.data else (None, ())
    # 8. The answer: intervals, breakdown, memory, run.
    events = partial(trace_events, timeline, program.kinds, step.graph.modules, job.signature())
    said = (*assumptions(job, step, precision, cluster.gpu), *filled, *unheard)
    held = memory(step, cluster.gpu.memory_bytes, cluster.gpus, job.grad_accum, process_bytes(cluster))
    return assemble(job, step, timed, timeline, held, cluster, events, said, correction, rental=rental, loader=loader)


def _correction(
    job: Job, gpu: Gpu, catalog: Catalog | None, constants: StepConstants | None, anchoring: Anchoring,
    step: TrainingStep | LayeredStep, terms: Mapping[str, float],
) -> tuple[Correction, tuple[str, ...]]:  # fmt: skip
    """What measured jobs say of a step with these terms, and what has to be said where given ones say nothing."""
    correction = NONE
    if anchoring.use and (anchors := _anchors(job, gpu, catalog, constants)):
        descriptor = describe_job(job, step, gpu, terms, anchoring.framework, anchoring.source)
        correction = anchors.correction(descriptor, anchoring.without)
    unheard = anchoring.use and set(job.anchors) - {"none", "published"} and not correction.count
    return correction, (_UNHEARD,) if unheard else ()


_UNHEARD = "no given anchor is of this model's family, so none corrects the estimate"


def _anchors(job: Job, gpu: Gpu, catalog: Catalog | None, constants: StepConstants | None) -> Anchors | None:
    """The published base, unless the job says otherwise or stands on other feet, and what the job brings.

    The base is data-parallel: it says nothing of other layouts.
    """
    base = constants is None and gpu.calibration is None and wants_published(job.anchors) and not is_layered(job)
    given = given_anchors(job) if job.anchors else []
    if not given:
        return published() if base else None
    own = [_anchor(each, catalog, constants) for each in given]
    return Anchors([*(published() if base else ()), *own], shipped_covariance())


def _anchor(measured: Measured, catalog: Catalog | None, constants: StepConstants | None) -> Anchor:
    """A measured job with what is predicted for it."""
    job = measured.job
    estimate = predict(job, catalog=catalog, constants=constants, anchoring=Anchoring(use=False))
    cluster = _cluster(catalog or _catalog(job.device), job.gpu, job.gpus, job.system or job.node, job.nodes)
    traced = layered_step if is_layered(job) else training_step
    step = traced(job, None, cluster.gpu.device_type)
    descriptor = describe_job(job, step, cluster.gpu, estimate.breakdown, measured.framework, measured.source)
    return Anchor(descriptor, measured.id, measured.source, measured.trust, measured.measured_s, estimate.step.p50)


def _catalog(device: str | None) -> Catalog:
    if not device:
        return default_catalog()
    try:
        state = Path(device).stat()
    except OSError:
        return default_catalog().with_file(device)  # says what is wrong
    return _with_file(device, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _with_file(device: str, _changed_ns: int, _size: int) -> Catalog:
    """A device file is read once until it changes, so that what is solved from its points is kept."""
    return default_catalog().with_file(device)


@lru_cache(maxsize=256)
def _cluster(catalog: Catalog, gpu: str, gpus: int, node: str | None, nodes: int | None) -> Cluster:
    return catalog.cluster(gpu, gpus, node=node, nodes=nodes)


def catalog_of(job: Job) -> Catalog:
    """The shipped catalog, with the entries of the job's device file where it names one."""
    return _catalog(job.device)


def cluster_of(job: Job) -> Cluster:
    """The GPUs, nodes and fabric of a job. Raises a `CatalogError` for an unknown GPU or an impossible count."""
    return _cluster(catalog_of(job), job.gpu, job.gpus, job.system or job.node, job.nodes)


def assumptions(job: Job, step: TrainingStep, precision: Precision, gpu: Gpu) -> tuple[str, ...]:
    """What was filled in, in words."""
    said = list(step.graph.assumptions)
    if gpu.calibration is not None:
        said.append(f"device calibrated on {gpu.calibration.made}, noise {100 * gpu.calibration.noise:.1f} %")
    if precision.fp8_scaling and not any(kind.name == "pt.scaled_mm" for kind in step.graph.kinds):
        said.append("fp8: no matrix multiply of this model qualifies (sizes in multiples of 16), so it runs in bf16")
    defaults = _defaults(job, step)
    if defaults:
        said.append(f"the model's defaults: {defaults}")
    if step.length_spread and job.gpus > 1:
        name = next((n for n in step.sizes if n in ("audio_frames", "seq_len")), "")
        said.append(
            f"batches differ in length by up to {step.length_spread:.0%}, and GPUs wait for the longest"
            + (f"; for equal ones give {name}={step.sizes[name]}..{step.sizes[name]}" if name else "")
        )
    if job.execution in ("compile", "torchscript", "xla"):
        said.append(f"{job.execution}: fusion of pointwise chains is a model of the compiler, not its output")
    if precision.name == "fp32" and gpu.device_type != "cpu":
        said.append(
            "fp32: matrix units off; PyTorch on Ampere and later runs convolutions in tf32 unless told otherwise"
        )
    if precision.loss_scaling:
        said.append("loss scaling: no skipped steps counted")
    words = [] if job.data else ["data loading keeps up"]
    if gpu.tdp_w or gpu.calibration is None:
        words.append("energy from the board's power limit")
    return (*said, "; ".join(words)) if words else tuple(said)


def _defaults(job: Job, step: TrainingStep) -> str:
    """The words that the job left to the model, with their values."""
    sizes = [f"{k} {v}" for k, v in step.sizes.items() if k not in job.input and k != "batch_size"]
    words = [
        *([f"batch {step.batch_size}"] if job.batch_size is None else []),
        *sizes,
        *([f"optimizer {step.optimizer}"] if job.optimizer is None else []),
        *(
            [f"dataset {step.dataset}"]
            if job.run.dataset is None and job.run.dataset_size is None and step.dataset
            else []
        ),
    ]
    return ", ".join(words)


def _scheduled(job: Job, catalog: Catalog | None, constants: StepConstants | None, anchoring: Anchoring) -> Estimate:
    """A run whose precision changes: the last precision's step, and the sum of all parts as the run."""
    parts = job.schedule
    estimates = [_predict_one(job, parse_precision(p.precision), catalog, constants, anchoring) for p in parts]
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
    fixed = last.run.p50 - _stepping(last, 0, last.steps, "p50") if last.run else 0.0
    total = Interval(*(
        sum(_stepping(e, start, n, q) for e, start, n in spans) + fixed for q in ("p10", "p50", "p90")
    ))  # fmt: skip
    ratio = total.p50 / last.run.p50 if last.run else 1.0
    note = "; ".join(
        f"{p.precision} {e.step.p50:.4g} s x {n} steps" for p, e, n in zip(parts, estimates, lengths, strict=True)
    )
    return dataclasses.replace(
        last,
        run=total,
        cost_usd=last.cost_usd.scaled(ratio) if last.cost_usd else None,
        energy_j=last.energy_j.scaled(ratio) if last.energy_j else None,
        assumptions=(
            f"schedule: {note}; step, epoch and breakdown are those of {parts[-1].precision}",
            *last.assumptions,
        ),
    )


def _stepping(estimate: Estimate, start: int, steps: int, quantile: str) -> float:
    """Seconds of so many steps from step `start` of a run on; those of its first epoch wait for the cold cache."""
    cold, slow = 0, 0.0
    if estimate.loading is not None and estimate.steps_per_epoch is not None:
        cold = max(0, min(start + steps, estimate.steps_per_epoch) - start)
        slow = getattr(estimate.loading.first_step, quantile) * cold
    return slow + float(getattr(estimate.step, quantile)) * (steps - cold)
