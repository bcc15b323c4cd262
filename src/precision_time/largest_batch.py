"""The memory of a job without its time, and the largest micro-batch whose memory fits."""

from __future__ import annotations

import dataclasses

from precision_time.errors import JobError
from precision_time.estimate.assemble import process_bytes
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.memory import Memory
from precision_time.estimate.step_memory import step_memory
from precision_time.global_batch import at_global_batch
from precision_time.hardware.catalog import Catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.job.precision import Precision, parse_precision
from precision_time.layout.options import Options
from precision_time.placement import cluster_of
from precision_time.prediction import rank_program
from precision_time.units import human_bytes

LIMIT = 1 << 20
"""Largest micro-batch that is tried."""


def memory_of(job: Job, *, catalog: Catalog | None = None) -> Memory:
    """Memory of the fullest GPU of a job; of a precision schedule, in the part that needs most."""
    cluster = cluster_of(job, catalog)
    precisions = [parse_precision(part.precision) for part in job.schedule] or [job.precision_spec]
    return max((_memory(job, precision, cluster) for precision in precisions), key=lambda memory: memory.peak_bytes)


def _memory(job: Job, precision: Precision, cluster: Cluster) -> Memory:
    step, program = rank_program(job, precision, cluster)
    return step_memory(step, program, Options.of(job), cluster.gpu.memory_bytes, process_bytes(cluster))


def largest_micro_batch(job: Job, *, catalog: Catalog | None = None) -> int:
    """The largest batch_size at which the job fits its GPU, all other fields unchanged; 0 where the smallest, which is
    1 or, for a model that cannot be trained with one sample, 2, does not fit.
    """

    def fits(batch: int) -> bool:
        return memory_of(job.replace(batch_size=batch), catalog=catalog).fits

    good, memory = _smallest(job, catalog)
    if not memory.fits:
        return 0
    bad = 2 * good
    while bad <= LIMIT and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _smallest(job: Job, catalog: Catalog | None) -> tuple[int, Memory]:
    """The smallest batch_size that can be trained, 1 or 2, and its memory."""
    try:
        return 1, memory_of(job.replace(batch_size=1), catalog=catalog)
    except JobError:  # of batch normalisation over one value; any other is raised again
        return 2, memory_of(job.replace(batch_size=2), catalog=catalog)


def at_largest_batch(job: Job, global_batch: int | None = None, *, catalog: Catalog | None = None) -> Job:
    """The job at the largest batch_size that fits its GPU. With `global_batch` samples in a step, shared by
    accumulation, it is the largest that divides the share of a data-parallel rank.

    Raises `JobError` where no batch_size fits, or where the ranks cannot share the global batch.
    """
    if global_batch is None:
        largest = largest_micro_batch(job, catalog=catalog)
        if largest:
            return job.replace(batch_size=largest)
        raise _none_fits(job, catalog)
    ranks = job.layout_spec.dp
    # Without accumulation gradients need no memory during the forward pass, so that no larger batch fits.
    most = largest_micro_batch(job.replace(grad_accum=1), catalog=catalog)
    shared = at_global_batch(job.replace(batch_size=max(most, 1)), global_batch)
    share = global_batch // ranks
    for size in (size for size in range(shared.batch_size or 1, 0, -1) if share % size == 0):
        found = job.replace(batch_size=size, grad_accum=share // size)
        if memory_of(found, catalog=catalog).fits:
            return found
    raise _none_fits(job, catalog)


def _none_fits(job: Job, catalog: Catalog | None) -> JobError:
    batch, memory = _smallest(job, catalog)
    return JobError(
        f"no batch_size of {job.model} fits on {job.gpus} x {job.gpu}: {batch} needs {human_bytes(memory.peak_bytes)} "
        f"of {human_bytes(memory.capacity_bytes)}; take layout fsdp, more or larger GPUs, or recompute full"
    )


def with_largest_batch(estimate: Estimate, *, catalog: Catalog | None = None) -> Estimate:
    """The estimate with `memory.largest_batch`."""
    largest = largest_micro_batch(estimate.job, catalog=catalog)
    return dataclasses.replace(estimate, memory=dataclasses.replace(estimate.memory, largest_batch=largest))
