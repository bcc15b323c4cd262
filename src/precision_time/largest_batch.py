"""The memory of a job without its time, and the largest micro-batch whose memory fits."""

from __future__ import annotations

import dataclasses

from precision_time.errors import JobError
from precision_time.estimate.assemble import process_bytes
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.memory import Memory
from precision_time.estimate.step_memory import step_memory
from precision_time.hardware.catalog import Catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.job.precision import Precision, parse_precision
from precision_time.layout.step_program import Options
from precision_time.placement import cluster_of
from precision_time.prediction import rank_program

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

    good = 1
    try:
        smallest_fits = fits(good)
    except JobError:  # of batch normalisation over one value; any other is raised again
        good = 2
        smallest_fits = fits(good)
    if not smallest_fits:
        return 0
    bad = 2 * good
    while bad <= LIMIT and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def with_largest_batch(estimate: Estimate, *, catalog: Catalog | None = None) -> Estimate:
    """The estimate with `memory.largest_batch`."""
    largest = largest_micro_batch(estimate.job, catalog=catalog)
    return dataclasses.replace(estimate, memory=dataclasses.replace(estimate.memory, largest_batch=largest))
