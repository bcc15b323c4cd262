"""GPU type x count x precision x batch of one training job as a table of configurations for CherryPick.

Seconds are what `predict` says. Prices are list prices of whole cloud instances (hardware/prices.py) in dollars per
second: a job of 4 GPUs pays for 8 where no smaller instance has that GPU. With `ENERGY` instead of a price the cost is
rated power, GPUs x TDP in watts, so that the cost of a run is in joules.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from precision_time.errors import CatalogError, PredictorError
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.prediction import predict
from precision_time.predictors.cloud_search import Configurations, table_of

GPUS = ("v100-16gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "l4", "t4")
COUNTS = (1, 2, 4, 8, 16, 32)
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16")
BATCHES = (32, 128)

CLOUD = "aws"
"""The one provider of the price list that has all of these GPUs."""
ENERGY = "energy"


def predicted_configurations(
    job: Job,
    *,
    gpus: Sequence[str] = GPUS,
    counts: Sequence[int] = COUNTS,
    precisions: Sequence[str] = PRECISIONS,
    batches: Sequence[int] = BATCHES,
    price: str = CLOUD,
    usd_per_gpu_hour: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Configurations:
    """The grid around a job whose run has a length in samples or epochs.

    Configurations that do not fit in memory, or whose GPU has no unit for the precision, are left out. `price` is a
    provider, an instance type or `any` of the price list, or `ENERGY`; `usd_per_gpu_hour` replaces it where given, for
    every GPU type. Raises a `CatalogError` or `PredictorError` where a price is missing.
    """
    if job.run.samples is None and job.run.epochs is None:
        raise PredictorError("the run has no length in samples or epochs, so batches cannot be compared; add samples")
    rows: list[PricedJob] = []
    for at, gpu in enumerate(gpus):
        progress(at, len(gpus))
        for precision, batch, count in itertools.product(precisions, batches, counts):
            candidate = job.replace(gpu=gpu, gpus=count, precision=precision, batch_size=batch)
            if (seconds := _predicted_seconds(candidate)) is not None:
                rows.append((candidate, seconds, price_per_second(gpu, count, price, usd_per_gpu_hour)))
    progress(len(gpus), len(gpus))
    return priced_table(rows)


PricedJob = tuple[Job, float, float]
"""A job, its seconds, and the price of its GPUs per second."""


def _predicted_seconds(job: Job) -> float | None:
    """None where the GPU has no unit for the precision, or its memory is too small."""
    try:
        estimate = predict(job)
    except CatalogError:
        return None
    return estimate.run.p50 if estimate.run is not None and estimate.memory.fits else None


def priced_table(rows: Sequence[PricedJob]) -> Configurations:
    """The configurations of these jobs: features of batch, count, precision and GPU."""
    return table_of(
        [_features(job) for job, _, _ in rows],
        [configuration_name(job) for job, _, _ in rows],
        [per_s for _, _, per_s in rows],
        [(job.gpu, job.precision, _batch(job), job.gpus) for job, _, _ in rows],
        [seconds for _, seconds, _ in rows],
    )


def configuration_name(job: Job) -> str:
    """GPUs, precision and batch of one optimizer step, as text."""
    return f"{job.gpus} x {job.gpu}, {job.precision}, batch {_batch(job)}"


def _features(job: Job) -> dict[str, float]:
    gpu = default_catalog().gpu(job.gpu)
    return {
        "log_gpus": math.log(job.gpus),
        "log_batch": math.log(_batch(job)),
        **precision_features(job.precision),
        "log_peak": math.log(gpu.peak(job.precision_spec.math)),
        "log_bandwidth": math.log(gpu.memory_bytes_per_s),
    }


def precision_features(precision: str) -> dict[str, float]:
    """Whether it computes in 16 bits, and whether on matrix units."""
    spec = parse_precision(precision)
    return {"half": float("16" in precision), "matrix_units": float(spec.tf32 or "16" in precision)}


def _batch(job: Job) -> int:
    """Samples of a GPU in one optimizer step."""
    return (job.batch_size or 1) * job.grad_accum


def price_per_second(
    gpu: str, count: int, price: str = CLOUD, usd_per_gpu_hour: Mapping[str, float] | None = None
) -> float:
    """Dollars per second of so many GPUs, or watts for `ENERGY`. Raises a `CatalogError` or `PredictorError`."""
    cluster = default_catalog().cluster(gpu, count)
    if usd_per_gpu_hour is not None:
        if gpu not in usd_per_gpu_hour:
            raise PredictorError(f"gpu {gpu!r} has no price; add it to usd_per_gpu_hour")
        return usd_per_gpu_hour[gpu] * count / 3600.0
    if price == ENERGY:
        if cluster.gpu.tdp_w is None:
            raise PredictorError(f"gpu {gpu!r} has no rated power in the catalog; name a provider as price")
        return cluster.gpu.tdp_w * count
    return default_catalog().rental(price, cluster).usd_per_hour / 3600.0
