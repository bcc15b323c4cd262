"""Builds the model of a job, with one batch, on the current device: for real training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_time.capture.captured_model import resolve, settle_ema
from precision_time.capture.trace import builder, require_torch
from precision_time.job.code import is_code
from precision_time.job.job import Job

if TYPE_CHECKING:
    from precision_time.zoo.workload import Workload


@dataclass(frozen=True, slots=True)
class Built:
    """A workload with its optimizer, the optimizer's implementation (None: torch's default) and gradient clipping."""

    workload: Workload
    optimizer: str
    optimizer_impl: str | None
    clip_norm: float | None
    ema: str | None


def build_workload(job: Job) -> Built:
    """The job's model with one batch, allocated under the current `torch.device`."""

    require_torch(job.model)
    if is_code(job.model):
        from precision_time.capture.user_model import user_model_workload

        workload, optimizer, implementation = user_model_workload(job)
        return Built(
            workload, job.optimizer or optimizer, job.optimizer_impl or implementation, job.clip_norm, settle_ema(job)
        )
    model = resolve(job)
    workload = builder(model.entry)(model.config, model.sizes)
    clip = job.clip_norm if job.clip_norm is not None else model.entry.clip_norm
    return Built(
        workload,
        job.optimizer or model.entry.optimizer,
        job.optimizer_impl,
        clip or None,
        settle_ema(job, model.entry.ema),
    )
