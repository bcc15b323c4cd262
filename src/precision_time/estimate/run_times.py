"""Seconds of an epoch and of all steps of a run from those of a step: numbers of steps, waits for data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from precision_time.capture.training_step import TrainingStep
from precision_time.estimate.goodput import Stepping
from precision_time.estimate.interval import Interval
from precision_time.estimate.loading import LoadedSteps, Loading
from precision_time.ingest.pipeline.loader import Loader
from precision_time.job.datasets import DATASETS, samples_per_epoch
from precision_time.job.job import Job


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds of a step including its wait for samples, of an epoch and of all steps; None where the job gives no
    length. `mean_step_s` is the mean over the whole run."""

    global_batch: int
    steps_per_epoch: int | None
    steps: int | None
    step: Interval
    epoch: Interval | None
    stepping: Stepping | None
    mean_step_s: float
    loading: Loading | None


def run_times(job: Job, step: TrainingStep, train: Interval, loader: Loader | None, floor_s: float) -> RunTimes:
    """The times of a run. `train`: seconds of a step without a wait for samples; `floor_s`: its physical floor."""
    replicas = job.layout_spec.dp  # ranks of one tp x pp x cp group work on the same samples
    global_batch = step.batch_size * job.grad_accum * replicas
    per_epoch = _steps_per_epoch(job, step, global_batch)
    steps = _steps(job, per_epoch, global_batch)
    loaded = LoadedSteps(loader, train, per_epoch, steps) if loader is not None else None
    loading = loaded.loading() if loaded else None
    interval = loading.step if loading else train
    epoch = interval.scaled(per_epoch) if per_epoch else None
    if loaded and loading:
        epoch = loading.first_epoch if loaded.only_first else loading.later_epoch
    if steps is None:
        return RunTimes(global_batch, per_epoch, None, interval, epoch, None, interval.p50, loading)
    training = train.scaled(steps)
    whole, first_wait_s = training, 0.0
    if loaded:
        whole = loaded.run(steps)
        first = min(steps, per_epoch) if per_epoch else 0
        first_wait_s = loaded.first_epoch(first).p50 - first * train.p50 if first else 0.0
    stepping = Stepping(steps, per_epoch, training, whole, max(first_wait_s, 0.0), floor_s * steps)
    return RunTimes(global_batch, per_epoch, steps, interval, epoch, stepping, whole.p50 / steps, loading)


def _steps_per_epoch(job: Job, step: TrainingStep, global_batch: int) -> int | None:
    if job.run.steps_per_epoch:
        return job.run.steps_per_epoch
    size = job.run.dataset_size or job.data.samples
    if size is None:
        dataset = job.run.dataset or step.dataset
        if dataset is None or dataset not in DATASETS:
            return None
        seq_len = step.sizes.get("seq_len")
        if DATASETS[dataset].counts_tokens and seq_len is None:
            return None
        size = samples_per_epoch(dataset, seq_len)
    return max(1, math.ceil(size / global_batch))


def _steps(job: Job, per_epoch: int | None, global_batch: int) -> int | None:
    if job.run.steps:
        return job.run.steps
    if job.run.samples:
        return math.ceil(job.run.samples / global_batch)
    if job.run.epochs and per_epoch:
        return math.ceil(job.run.epochs * per_epoch)
    return None
