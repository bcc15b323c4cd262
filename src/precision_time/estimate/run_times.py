"""Seconds of an epoch and a run from those of a step: numbers of steps, evaluations, checkpoints, start-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from precision_time.capture.training_step import TrainingStep
from precision_time.estimate.interval import Interval
from precision_time.estimate.loading import LoadedSteps, Loading
from precision_time.ingest.pipeline.loader import Loader
from precision_time.job.datasets import DATASETS, samples_per_epoch
from precision_time.job.job import Job


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds of a step including its wait for samples, of an epoch and of the run; None where the job gives no length.
    `mean_step_s` is the mean over the whole run."""

    global_batch: int
    steps_per_epoch: int | None
    steps: int | None
    step: Interval
    epoch: Interval | None
    run: Interval | None
    mean_step_s: float
    loading: Loading | None


def run_times(job: Job, step: TrainingStep, train: Interval, loader: Loader | None, forward_s: float) -> RunTimes:
    """The times of a run. `train`: seconds of a step without a wait for samples; `forward_s`: of a micro-step's forward
    pass."""
    replicas = job.layout_spec.dp  # ranks of one tp x pp x cp group work on the same samples
    global_batch = step.batch_size * job.grad_accum * replicas
    per_epoch = _steps_per_epoch(job, step, global_batch)
    steps = _steps(job, per_epoch, global_batch)
    loaded = LoadedSteps(loader, train, per_epoch, steps) if loader is not None else None
    loading = loaded.loading() if loaded else None
    interval = loading.step if loading else train
    epoch = interval.scaled(per_epoch) if per_epoch else None
    stepping = interval.scaled(steps) if steps else None
    if loaded and loading:
        epoch = loading.first_epoch if loaded.only_first else loading.later_epoch
        stepping = loaded.run(steps) if steps else None
    run, mean_step_s = None, interval.p50
    if steps is not None and stepping is not None:
        run = stepping.shifted(around_steps(job, steps, per_epoch, forward_s, step.batch_size))
        mean_step_s = stepping.p50 / steps
    return RunTimes(global_batch, per_epoch, steps, interval, epoch, run, mean_step_s, loading)


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


def around_steps(job: Job, steps: int, per_epoch: int | None, forward_s: float, batch_size: int) -> float:
    """Seconds of a run outside its steps: evaluations, checkpoints, start-up."""
    run = job.run
    fixed = run.start_up_s or 0.0
    if run.checkpoint_every_steps and run.checkpoint_s:
        fixed += steps // run.checkpoint_every_steps * run.checkpoint_s
    if run.evaluation_samples and per_epoch:
        evaluations = steps / per_epoch / (run.evaluation_every_epochs or 1.0)
        batches = math.ceil(run.evaluation_samples / (batch_size * job.layout_spec.dp))
        fixed += evaluations * batches * forward_s
    return fixed
