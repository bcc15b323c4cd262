"""Ways to train one network as configurations: GPU type x count x precision x batch, and the real runs of this machine.

The first is a **simulated world**: its times are what `predict` says, since no published table holds such a grid. It
tells how a search fares on a landscape of this kind, not what a GPU does. There are no prices in the hardware catalog,
so a configuration costs its boards' rated power, GPUs x TDP in watts, and the cost of a run is joules; whoever has
prices gives dollars per GPU and hour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from precision_time.errors import CatalogError, PredictorError
from precision_time.hardware.catalog import default_catalog
from precision_time.job.job import Job
from precision_time.job.precision import parse_precision
from precision_time.prediction import predict
from precision_time.predictors.cloud_search import Configurations, table_of
from precision_time.predictors.interface import MeasuredJob

GPUS = ("v100-16gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "l4", "t4")
COUNTS = (1, 2, 4, 8, 16, 32)
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16")
BATCHES = (32, 128)


def simulated_configurations(
    job: Job,
    *,
    gpus: Sequence[str] = GPUS,
    counts: Sequence[int] = COUNTS,
    precisions: Sequence[str] = PRECISIONS,
    batches: Sequence[int] = BATCHES,
    usd_per_gpu_hour: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Configurations:
    """The grid around a job whose run has a length in samples or epochs; seconds are what `predict` says.

    Left out: precisions a GPU has no unit for, and what does not fit in memory. Costs are dollars where prices are
    given for every GPU type, joules at rated power otherwise. Raises a `PredictorError` where a price is missing.
    """
    if job.run.samples is None and job.run.epochs is None:
        raise PredictorError("the run has no length in samples or epochs, so batches cannot be compared; add samples")
    rows: list[Mapping[str, float]] = []
    names: list[str] = []
    prices: list[float] = []
    places: list[tuple[str | float, ...]] = []
    seconds: list[float] = []
    for at, gpu in enumerate(gpus):
        progress(at, len(gpus))
        facts = default_catalog().gpu(gpu)
        if usd_per_gpu_hour is not None and gpu not in usd_per_gpu_hour:
            raise PredictorError(f"gpu {gpu!r} has no price; add it to usd_per_gpu_hour")
        if usd_per_gpu_hour is None and facts.tdp_w is None:
            raise PredictorError(f"gpu {gpu!r} has no rated power in the catalog; give usd_per_gpu_hour")
        price = (facts.tdp_w or 0.0) if usd_per_gpu_hour is None else usd_per_gpu_hour[gpu] / 3600.0
        for precision in precisions:
            for batch in batches:
                for count in counts:
                    taken = _seconds(job.replace(gpu=gpu, gpus=count, precision=precision, batch_size=batch))
                    if taken is None:
                        continue
                    rows.append({
                        "log_gpus": math.log(count), "log_batch": math.log(batch), **precision_features(precision),
                        "log_peak": math.log(facts.peak(parse_precision(precision).math)),
                        "log_bandwidth": math.log(facts.memory_bytes_per_s),
                    })  # fmt: skip
                    names.append(f"{count} x {gpu}, {precision}, batch {batch}")
                    prices.append(price * count)
                    places.append((gpu, precision, batch, count))
                    seconds.append(taken)
    progress(len(gpus), len(gpus))
    return table_of(rows, names, prices, places, seconds)


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
