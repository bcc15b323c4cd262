"""Ways to train one network as configurations of GPU type x count x precision x batch, and what they cost.

Times come from three places: `published_configurations` from published rows, `measured_configurations` from the real
runs of this machine, and `simulated_configurations` from `predict`, a **simulated world** that tells how a search fares
on a full grid of this kind, not what a GPU does.

Prices are list prices of whole cloud instances (hardware/prices.py), in dollars a second; a job of 4 GPUs pays for the
8 of an instance that has no fewer. `ENERGY` instead of a price counts rated power, GPUs x TDP in watts, so that the
cost of a run is joules. A worker of this machine costs 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from precision_time.errors import CatalogError, PredictorError
from precision_time.hardware.catalog import default_catalog
from precision_time.hardware.fabric import Cluster
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.prediction import predict
from precision_time.predictors.cloud_search import Configurations, table_of
from precision_time.predictors.interface import MeasuredJob, global_batch_size, steps_of

GPUS = ("v100-16gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "l4", "t4")
COUNTS = (1, 2, 4, 8, 16, 32)
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16")
BATCHES = (32, 128)

CLOUD = "aws"
"""The one provider of the price list that has all of these GPUs."""
ENERGY = "energy"
FEWEST_WAYS = 12
"""Published configurations of a model below which a search that makes 6 to 8 runs has nothing to save."""
PUBLISHED_SAMPLES = 1_000_000
"""Samples that every published configuration is timed for; all costs scale with it alike."""


def simulated_configurations(
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
    """The grid around a job whose run has a length in samples or epochs; seconds are what `predict` says.

    Left out: precisions a GPU has no unit for, and what does not fit in memory. `price` is a provider, an instance type
    or `any` of the price list, or `ENERGY`; `usd_per_gpu_hour` stands for it where given, for every GPU type. Raises a
    `CatalogError` or `PredictorError` where a price is missing.
    """
    if job.run.samples is None and job.run.epochs is None:
        raise PredictorError("the run has no length in samples or epochs, so batches cannot be compared; add samples")
    ways: list[tuple[Job, float, float]] = []
    for at, gpu in enumerate(gpus):
        progress(at, len(gpus))
        for precision in precisions:
            for batch in batches:
                for count in counts:
                    way = job.replace(gpu=gpu, gpus=count, precision=precision, batch_size=batch)
                    per_s = _per_second(gpu, count, price, usd_per_gpu_hour)
                    if (taken := _seconds(way)) is not None:
                        ways.append((way, taken, per_s))
    progress(len(gpus), len(gpus))
    return _table(ways)


def _table(ways: Sequence[tuple[Job, float, float]]) -> Configurations:
    """Configurations of (job, seconds, price a second)."""
    return table_of(
        [_features(job) for job, _, _ in ways],
        [_name(job) for job, _, _ in ways],
        [per_s for _, _, per_s in ways],
        [(job.gpu, job.precision, _batch(job), job.gpus) for job, _, _ in ways],
        [seconds for _, seconds, _ in ways],
    )


def _features(job: Job) -> dict[str, float]:
    gpu = default_catalog().gpu(job.gpu)
    return {
        "log_gpus": math.log(job.gpus), "log_batch": math.log(_batch(job)), **precision_features(job.precision),
        "log_peak": math.log(gpu.peak(job.precision_spec.math)), "log_bandwidth": math.log(gpu.memory_bytes_per_s),
    }  # fmt: skip


def _batch(job: Job) -> int:
    """Samples of a GPU in one optimizer step."""
    return (job.batch_size or 1) * job.grad_accum


def _name(job: Job) -> str:
    return f"{job.gpus} x {job.gpu}, {job.precision}, batch {_batch(job)}"


def _per_second(gpu: str, count: int, price: str, usd_per_gpu_hour: Mapping[str, float] | None) -> float:
    cluster: Cluster = default_catalog().cluster(gpu, count)
    if usd_per_gpu_hour is not None:
        if gpu not in usd_per_gpu_hour:
            raise PredictorError(f"gpu {gpu!r} has no price; add it to usd_per_gpu_hour")
        return usd_per_gpu_hour[gpu] * count / 3600.0
    if price == ENERGY:
        if cluster.gpu.tdp_w is None:
            raise PredictorError(f"gpu {gpu!r} has no rated power in the catalog; name a provider as price")
        return cluster.gpu.tdp_w * count
    return default_catalog().rental(price, cluster).usd_per_hour / 3600.0


def published_configurations(rows: Sequence[MeasuredJob], price: str = CLOUD) -> dict[str, Configurations]:
    """Model and input -> configurations that were measured and published, timed as whole instances with those GPUs.

    Seconds are those of `PUBLISHED_SAMPLES` at the measured step. Most rows are from machines of NVIDIA's own, so a
    cloud's clocks and fabric may differ; that is left aside. Of equal configurations (other frameworks) the faster
    counts. GPUs that the provider does not rent are left out, and models with fewer than `FEWEST_WAYS` are.
    """
    groups: dict[str, dict[str, tuple[Job, float, float]]] = {}
    for row in rows:
        job = row.job
        if not job.layout_spec.plain or job.batch_size is None:
            continue
        try:
            per_s = _per_second(job.gpu, job.gpus, price, None)
        except CatalogError:
            continue
        seconds = row.seconds / steps_of(job) * PUBLISHED_SAMPLES / global_batch_size(job)
        sizes = ", ".join(f"{word} {_size(value)}" for word, value in sorted(job.input.items()))
        mine = groups.setdefault(f"{job.model}, {sizes}", {})
        known = mine.get(_name(job))
        if known is None or seconds < known[1]:
            mine[_name(job)] = (job, seconds, per_s)
    return {name: _table(list(ways.values())) for name, ways in groups.items() if len(ways) >= FEWEST_WAYS}


def _size(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def precision_features(precision: str) -> dict[str, float]:
    """Whether it computes in 16 bits, and whether on matrix units."""
    spec = parse_precision(precision)
    return {"half": float("16" in precision), "matrix_units": float(spec.tf32 or "16" in precision)}


def _seconds(job: Job) -> float | None:
    try:
        estimate = predict(job)
    except CatalogError:
        return None
    return estimate.run.p50 if estimate.run is not None and estimate.memory.fits else None


def measured_configurations(rows: Sequence[MeasuredJob]) -> dict[str, Configurations]:
    """Network and data -> workers x batch x precision, from real runs over the most data that all have in common.

    A worker costs 1 a second. Networks measured in fewer than 4 ways are left out.
    """
    groups: dict[str, dict[int, list[MeasuredJob]]] = {}
    for row in rows:
        if row.job.run.samples is not None and row.job.batch_size is not None:
            by_samples = groups.setdefault(f"{row.job.model}, {row.dataset}", {})
            by_samples.setdefault(row.job.run.samples, []).append(row)
    tables: dict[str, Configurations] = {}
    for name, by_samples in groups.items():
        fullest = max(by_samples.values(), key=lambda found: (len(found), found[0].job.run.samples or 0))
        if len(fullest) >= 4:
            tables[name] = _table_of_runs(fullest)
    return tables


def _table_of_runs(rows: Sequence[MeasuredJob]) -> Configurations:
    return table_of(
        [
            {"log_gpus": math.log(r.job.gpus), "log_batch": math.log(r.job.batch_size or 1),
             **precision_features(r.job.precision)}
            for r in rows
        ],
        [f"{r.job.gpus} x {r.job.gpu}, {r.precision}, batch {r.job.batch_size}" for r in rows],
        [float(r.job.gpus) for r in rows],
        [(r.precision, r.job.batch_size or 1, r.job.gpus) for r in rows],
        [r.seconds for r in rows],
    )  # fmt: skip
