"""The samples of an optimizer step over all ranks, and a job with another number of them."""

from __future__ import annotations

from precision_time.capture.captured_model import resolve
from precision_time.errors import JobError
from precision_time.job.job import Job


def batch_size_of(job: Job) -> int:
    """Samples per data-parallel rank and micro-step: the job's, or the default of the model."""
    return job.batch_size or int(resolve(job).sizes["batch_size"])


def global_batch_of(job: Job) -> int:
    """Samples of an optimizer step."""
    return batch_size_of(job) * job.grad_accum * job.layout_spec.dp


def at_global_batch(job: Job, batch: int) -> Job:
    """The job with so many samples in a step: its micro-batch, or the next smaller one that divides a rank's share.

    Raises `JobError` where its data-parallel ranks cannot share them evenly.
    """
    ranks = job.layout_spec.dp
    share, rest = divmod(batch, ranks)
    if rest or not share:
        raise JobError(
            f"global_batch_size {batch} cannot be shared evenly by {ranks} data-parallel ranks; take a multiple, for "
            f"example {max(1, round(batch / ranks)) * ranks}"
        )
    most = min(batch_size_of(job), share)
    micro = next(size for size in range(most, 0, -1) if share % size == 0)
    return job.replace(batch_size=micro, grad_accum=share // micro)
