"""The memory of a job without its time, and the largest micro-batch whose memory fits."""

from __future__ import annotations

import dataclasses

from precision_time.capture.training_step import training_step
from precision_time.estimate.assemble import process_bytes
from precision_time.estimate.estimate import Estimate
from precision_time.estimate.memory import Memory, memory
from precision_time.hardware.catalog import Catalog, default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.job.precision import Precision, parse_precision
from precision_time.layered_prediction import is_layered, layers_memory

LIMIT = 1 << 20
"""No micro-batch is looked for beyond this."""


def memory_of(job: Job, *, catalog: Catalog | None = None) -> Memory:
    """What the fullest GPU of a job holds; of a precision schedule, in its hungriest part."""
    known = catalog or (default_catalog().with_file(job.device) if job.device else default_catalog())
    cluster = known.cluster(job.gpu, job.gpus, node=job.system or job.node, nodes=job.nodes)
    precisions = [parse_precision(part.precision) for part in job.schedule] or [job.precision_spec]
    return max((_memory(job, precision, cluster) for precision in precisions), key=lambda found: found.peak_bytes)


def _memory(job: Job, precision: Precision, cluster: Cluster) -> Memory:
    if is_layered(job):
        return layers_memory(job, precision, cluster)
    step = training_step(job, precision, cluster.gpu.device_type)
    return memory(step, cluster.gpu.memory_bytes, cluster.gpus, job.grad_accum, process_bytes(cluster))


def largest_micro_batch(job: Job, *, catalog: Catalog | None = None) -> int:
    """The largest batch_size at which the job fits its GPU, all else as given (grad_accum, too); 0 where 1 does not."""

    def fits(batch: int) -> bool:
        return memory_of(job.replace(batch_size=batch), catalog=catalog).fits

    if not fits(1):
        return 0
    good, bad = 1, 2
    while bad <= LIMIT and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def with_largest_batch(estimate: Estimate, *, catalog: Catalog | None = None) -> Estimate:
    """The estimate with the answer in its memory."""
    found = largest_micro_batch(estimate.job, catalog=catalog)
    return dataclasses.replace(estimate, memory=dataclasses.replace(estimate.memory, largest_batch=found))
