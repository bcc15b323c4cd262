"""Turns a simulated step and the run's facts into an `Estimate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from precision_time.capture.graph import Phase
from precision_time.capture.training_step import TrainingStep
from precision_time.estimate.checkpoints import checkpoint_of
from precision_time.estimate.correction import NONE, Correction
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.goodput import RunFacts, goodput
from precision_time.estimate.interval import Interval
from precision_time.estimate.learned import Corrections
from precision_time.estimate.loading import Loading
from precision_time.estimate.memory import CPU_PROCESS_BYTES, Memory, memory_parameters
from precision_time.estimate.run_parts import run_parts
from precision_time.estimate.run_times import run_times
from precision_time.estimate.spread import (
    EXPOSED_SPREAD,
    MEASURED_EXPOSED_SPREAD,
    JobFacts,
    SpreadTerms,
    calibrated_log_spread,
    kind_of,
    log_spread,
)
from precision_time.estimate.utilisation import utilisation
from precision_time.estimate.verified import verified
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.prices import Rental
from precision_time.ingest.pipeline.loader import Loader
from precision_time.job.datasets import DATASETS
from precision_time.job.job import Job
from precision_time.timeline.simulate import simulate
from precision_time.timeline.timeline import Timeline
from precision_time.timeline.trace import with_loader
from precision_time.timing.kernels import SOURCES
from precision_time.timing.program_times import TimedProgram
from precision_time.timing.scaled import UNCHANGED, Factors, scaled
from precision_time.timing.signature_times import TimedSignatures
from precision_time.timing.step_factors import Openness, group_seconds, shipped_openness
from precision_time.timing.work import CONV_DIRECT

IDLE_POWER_SHARE = 0.35
"""Power of a GPU that waits, as a share of its limit: assumed, between idle (about 0.15) and a busy memory system."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One optimizer step of a job, from capture to timeline."""

    step: TrainingStep
    timed: TimedProgram
    timeline: Timeline
    known: dict[Factors, Timeline] = field(default_factory=dict, compare=False)
    """The step with other times, by their factors."""

    @classmethod
    def of(cls, step: TrainingStep, timed: TimedProgram) -> SimulatedStep:
        return cls(step, timed, simulate(timed))

    def scaled(self, factors: Factors) -> Timeline:
        """The step simulated again with the times of its program multiplied, without its spans.

        A factor on all of them is one on the step, so factors of equal ratios are simulated once.
        """
        return self.timeline if factors == UNCHANGED else self._by_ratios(factors).times(factors.kernels)

    def step_s(self, factors: Factors) -> float:
        """Seconds of the step simulated so."""
        if factors == UNCHANGED:
            return self.timeline.step_s
        return self._by_ratios(factors).step_s * factors.kernels

    def _by_ratios(self, factors: Factors) -> Timeline:
        ratios = Factors(1.0, *[round(each / factors.kernels, 12) for each in factors[1:]])
        if ratios not in self.known:
            self.known[ratios] = simulate(scaled(self.timed, ratios))
        return self.known[ratios]


@dataclass(frozen=True, slots=True)
class Supplements:
    """Further inputs of an estimate. Without a loader, data loading is taken to keep up.

    notes       sentences about defaults and about what is not modelled
    correction  by measured jobs
    learned     by outcomes of the cluster's jobs, on top of it
    rental      the price of the cluster, where the job names a provider
    loader      data loading beside training
    events      the trace of a program with its times multiplied, in the Chrome format
    evaluated   the step with modules as `eval()` has them, where the run evaluates
    """

    notes: tuple[str, ...] = ()
    correction: Correction = NONE
    rental: Rental | None = None
    loader: Loader | None = None
    events: Callable[[TimedProgram, Factors], dict[str, Any]] = lambda timed, factors: {}
    learned: Corrections | None = None
    evaluated: SimulatedStep | None = None


def assemble(
    job: Job, simulated: SimulatedStep, memory: Memory, cluster: Cluster, supplements: Supplements = Supplements()
) -> Estimate:
    """The estimate of a job whose precision does not change during the run. `simulated`: without the correction."""
    correction, rental, learned = supplements.correction, supplements.rental, None
    step, timed, timeline = simulated.step, simulated.timed, simulated.scaled(correction.factors)
    factors, anchored_s = correction.factors, timeline.step_s
    per_kind = timed.calls_per_kind
    bounds = _bounds(timed, per_kind)
    if supplements.learned is not None:
        learned = supplements.learned.correction_of(job, step.precision.label, bounds.get("launch", 0.0))
    if learned is not None:
        timeline, factors = timeline.times(learned.factor), factors.times(learned.factor)
    floor_s = float((per_kind * timed.floor_s).sum())
    uncorrected_s = simulated.timeline.step_s
    breakdown = _above(min(floor_s, uncorrected_s), step_terms(timeline))
    train_s = sum(breakdown.values())
    bytes_total = float((per_kind * timed.works.nbytes).sum()) or 1.0
    unknown = list(timed.works.unsupported)
    unknown_share = float((per_kind * timed.works.nbytes)[unknown].sum()) / bytes_total
    terms = spread_terms(timed, simulated.timeline, cluster.gpu.arch)
    terms = replace(terms, grouped_share=grouped_share(job, timed))
    spread = correction.narrowed(_spread(terms, job, cluster, step))
    if learned is None:
        train = Interval.around(train_s, spread, floor_s)
    else:
        train = learned.around(train_s, learned.narrowed(spread), floor_s)
    times = run_times(job, step, train, supplements.loader, floor_s)
    loading, seconds = times.loading, times.step.p50
    slower = learned.factor if learned else 1.0
    whole = None
    if times.stepping:
        whole = goodput(run_facts(job, step, cluster, supplements.evaluated, slower), times.stepping)
    run = whole.wall.interval if whole else None
    breakdown["loader_stall"] = loading.stall_s if loading else 0.0
    explained = 1.0 - (1.0 - correction.informed) * (1.0 - (learned.informed if learned else 0.0))
    sources = _sources(timed, per_kind, timeline, factors, explained)
    price = job.run.price_per_gpu_hour
    usd_per_hour = cluster.gpus * price if price is not None else rental.usd_per_hour if rental else None
    busy = (train_s - breakdown["host_gaps"]) / times.mean_step_s
    if times.stepping and run:
        busy *= min(times.stepping.whole.p50 / run.p50, 1.0)
    watts = (cluster.node.tdp_w or cluster.gpu.tdp_w or 0.0) * (IDLE_POWER_SHARE + (1.0 - IDLE_POWER_SHARE) * busy)
    length = step.sizes.get("seq_len")
    tokens = times.global_batch * length if isinstance(length, int) else None
    return verified(
        Estimate(
            job=job,
            step=times.step,
            epoch=times.epoch,
            run=run,
            goodput=whole,
            breakdown=breakdown,
            communication_hidden_s=timeline.communication_hidden_s,
            samples_per_s=times.global_batch / seconds,
            samples_unit=_unit(step),
            steps_per_epoch=times.steps_per_epoch,
            steps=times.steps,
            memory=memory,
            sources=_with_stall(sources, loading, seconds) if loading else sources,
            bound_shares=bounds,
            unsupported=tuple(sorted({timed.kinds[i].name for i in unknown})),
            unsupported_bytes_share=unknown_share,
            floor_s=floor_s,
            parameters=step.parameter_count,
            communication=_communication(timeline),
            flops_per_step=_flops(timed, per_kind),
            utilisation=utilisation(timed, cluster.gpu, cluster.gpus, step.precision.math, times.mean_step_s, tokens),
            cost_usd=run.scaled(usd_per_hour / 3600.0) if run and usd_per_hour is not None else None,
            energy_j=run.scaled(watts * cluster.gpus) if run and watts else None,
            assumptions=supplements.notes,
            anchors=replace(correction, uncorrected_s=uncorrected_s) if correction.count else correction,
            loading=loading,
            events=_drawn(partial(supplements.events, timed, factors), train_s, loading),
            rental=rental if price is None else None,
            learned=replace(learned, uncorrected_s=anchored_s) if learned else None,
        )
    )


def _communication(timeline: Timeline) -> dict[str, dict[str, float]]:
    """Seconds of communication, exposed and hidden, by group of ranks."""
    groups = dict.fromkeys((*timeline.exposed_by_group, *timeline.hidden_by_group))
    return {
        group: {
            "exposed_s": timeline.exposed_by_group.get(group, 0.0),
            "hidden_s": timeline.hidden_by_group.get(group, 0.0),
        }
        for group in groups
    }


def _drawn(
    events: Callable[[], dict[str, Any]], train_s: float, loading: Loading | None
) -> Callable[[], dict[str, Any]]:
    """The trace, with the loader on a track of its own."""
    return events if loading is None else partial(_beside_loader, events, train_s, loading)


def _beside_loader(events: Callable[[], dict[str, Any]], train_s: float, loading: Loading) -> dict[str, Any]:
    return with_loader(events(), train_s, loading.loader_s, loading.stall_s, loading.binding)


def _with_stall(sources: Mapping[str, float], loading: Loading, step_s: float) -> dict[str, float]:
    """Shares of the step by source, with the wait for data added under the loader's source."""
    share = loading.stall_s / step_s
    shares = {name: value * (1.0 - share) for name, value in sources.items()}
    return {**shares, loading.source: shares.get(loading.source, 0.0) + share}


def _spread(terms: SpreadTerms, job: Job, cluster: Cluster, step: TrainingStep) -> float:
    calibration, gpu, family = cluster.gpu.calibration, cluster.gpu, step.family
    if calibration is None:
        precision = step.precision.label
        if step.precision.tf32_convolutions:  # the kernels of two precisions, both of which have been measured
            precision = "tf32" if gpu.has("tf32") else "fp32"
        kind = kind_of(family, precision, job, gpu.name)
        facts = JobFacts(family, gpu.name, gpu.arch, precision, job.framework, cluster.gpus, kind)
        return log_spread(terms, facts)
    return calibrated_log_spread(terms, calibration.noise)


def process_bytes(cluster: Cluster) -> int:
    """Bytes of a process besides tensors; on a CPU there is no CUDA context."""
    return CPU_PROCESS_BYTES if cluster.gpu.device_type == "cpu" else memory_parameters().process_bytes


def spread_terms(
    timed: TimedSignatures, timeline: Timeline, arch: str, openness: Openness | None = None
) -> SpreadTerms:
    """The terms of the job that widen the interval. `openness`: of the step factors; default: the shipped one."""
    per_kind = timed.calls_per_kind
    moved = per_kind * timed.works.nbytes
    offload_s = timed.offload.update_s if isinstance(timed, TimedProgram) else 0.0
    elsewhere_s = timeline.bubble_s + timeline.straggler_wait_s  # waits for ranks whose hosts cost the same
    return SpreadTerms(
        kernel=kernel_spread(timed, per_kind, timeline.step_s),
        factors=(openness or shipped_openness()).log_spread(group_seconds(timed, arch), timeline.step_s),
        host_share=timeline.host_gap_s / timeline.step_s,
        host_spread=timed.host.log_spread,
        exposed_share=(timeline.communication_exposed_s + offload_s) / timeline.step_s,
        unsupported_share=float(moved[list(timed.works.unsupported)].sum() / (moved.sum() or 1.0)),
        exposed_spread=MEASURED_EXPOSED_SPREAD if timed.communication_source == "measured" else EXPOSED_SPREAD,
        host_busy=min(timeline.host_s / (timeline.step_s - elsewhere_s), 1.0),
    )


def grouped_share(job: Job, timed: TimedSignatures) -> float:
    """Share of the kernels' time that are backward passes of grouped convolutions on vector units, where the job's
    PyTorch is newer than any that such a step was measured in."""
    if job.memory_format != "nhwc" or job.measured_groups:
        return 0.0
    works, seconds = timed.works, timed.work_s * timed.calls_per_kind[timed.works.owner]
    backward = [family == CONV_DIRECT and not variant.startswith("fwd") for family, variant, *_ in works.table.classes]
    of_these = np.array(backward, dtype=np.bool_)[works.table.class_of]
    return float(seconds @ of_these) / max(float(seconds.sum()), 1e-30)


def step_terms(timeline: Timeline) -> dict[str, float]:
    """Seconds of a steady step by term, as simulated."""
    busy = timeline.busy
    return {
        "forward": busy[Phase.FORWARD] + busy[Phase.LOSS],
        "backward": busy[Phase.BACKWARD],
        "optimizer": busy[Phase.OPTIMIZER] + busy[Phase.CLIP],
        "loss_scaling": busy[Phase.UNSCALE],
        "recompute": timeline.recompute_s,
        "casts": timeline.casts_s,
        "host_gaps": timeline.host_gap_s,
        "communication_exposed": timeline.communication_exposed_s,
        "bubble": timeline.bubble_s,
        "straggler_wait": timeline.straggler_wait_s,
    }


def _above(floor_s: float, terms: dict[str, float]) -> dict[str, float]:
    """The terms, raised alike where anchors lower the step below the floor of its kernels."""
    raised = max(floor_s / (sum(terms.values()) or 1.0), 1.0)
    return {term: seconds * raised for term, seconds in terms.items()}


def _sources(
    timed: TimedProgram, per_kind: Any, timeline: Timeline, factors: Factors, informed: float
) -> dict[str, float]:
    """Shares of the step by source; `informed`, the share that measured jobs explain, counts as measured."""
    by_source = per_kind @ timed.source_s * factors.kernels
    seconds = {name: float(value) for name, value in zip(SOURCES, by_source, strict=True)}
    seconds[timed.host_source] += timeline.host_gap_s
    seconds[timed.communication_source] += timeline.communication_exposed_s
    seconds["assumed"] += timeline.straggler_wait_s + timed.offload.update_s
    kernels = sum(seconds.values())
    if timeline.bubble_s and kernels:  # a bubble is time of other stages, with the same sources
        seconds = {name: value * (1.0 + timeline.bubble_s / kernels) for name, value in seconds.items()}
    whole = sum(seconds.values()) or 1.0
    shares = {name: value / whole * (1.0 - informed) for name, value in seconds.items()}
    shares["measured"] += informed
    return shares


def kernel_spread(timed: TimedSignatures, per_kind: Any, seconds: float) -> float:
    """Spread of log(step) from its kernel models: errors are fully correlated within a class of kernels, independent
    between classes."""
    table = timed.works.table
    work_s = timed.work_s * per_kind[timed.works.owner]
    deviation = np.bincount(table.class_of, weights=work_s * timed.work_spread, minlength=len(table.classes))
    return float(np.sqrt((deviation**2).sum()) / seconds)


def _bounds(timed: TimedSignatures, per_kind: Any) -> dict[str, float]:
    total = float((per_kind * timed.kind_s).sum()) or 1.0
    compute = float((per_kind * timed.compute_bound_s).sum()) / total
    launch = float((per_kind * np.minimum(timed.launch_s, timed.kind_s - timed.compute_bound_s).clip(0)).sum()) / total
    return {"compute": compute, "memory": max(1.0 - compute - launch, 0.0), "launch": launch}


def _flops(timed: TimedSignatures, per_kind: Any) -> dict[str, float]:
    table = timed.works.table
    work_flops = table.flops * per_kind[timed.works.owner]
    totals: dict[str, float] = {}
    by_class = np.bincount(table.class_of, weights=work_flops, minlength=len(table.classes))
    for (_, _, math_name, _), value in zip(table.classes, by_class.tolist(), strict=True):
        if value:
            totals[math_name] = totals.get(math_name, 0.0) + value
    return totals


def _unit(step: TrainingStep) -> str:
    if step.dataset and step.dataset in DATASETS and not DATASETS[step.dataset].counts_tokens:
        return DATASETS[step.dataset].unit
    return "samples"


def run_facts(
    job: Job, step: TrainingStep, cluster: Cluster, evaluated: SimulatedStep | None = None, slower: float = 1.0
) -> RunFacts:
    """What the run around the steps depends on; `slower`: a factor on the forward passes of evaluations."""
    samples, fitted = job.run.evaluation_samples, run_parts()
    forward_s = evaluation_forward_seconds(evaluated, job, samples) * slower if samples and evaluated else None
    return RunFacts(
        run=job.run,
        model=step.model,
        nodes=cluster.nodes,
        gpus=cluster.gpus,
        start_up=fitted.start_up,
        evaluation=fitted.evaluation_of(step.family),
        evaluation_forward_s=forward_s,
        checkpoint=checkpoint_of(job, step, cluster),
        scales_loss=step.precision.loss_scaling and job.loss_scale == "dynamic",
        compiles=job.execution == "compile",
    )


def evaluation_forward_seconds(evaluated: SimulatedStep, job: Job, samples: int) -> float:
    """Seconds of the forward passes of so many samples, spread over all ranks; a pipeline is filled once."""
    busy, layout = evaluated.timeline.busy, job.layout_spec
    batches = math.ceil(samples / (evaluated.step.batch_size * layout.dp))
    return (batches + layout.pp - 1) * (busy[Phase.FORWARD] + busy[Phase.LOSS]) / job.grad_accum
