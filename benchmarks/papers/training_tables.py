"""Measured ways to train one network as configurations for CherryPick, and what they cost.

`published_configurations` are made of published rows, priced in dollars per second as in
`precision_time.predictors.training_grid`. `measured_configurations` are made of the real runs of a machine, where a
worker costs 1 per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from precision_time.errors import CatalogError
from precision_time.predictors.cloud_search import Configurations, table_of
from precision_time.predictors.interface import MeasuredJob, global_batch_size, steps_of
from precision_time.predictors.training_grid import (
    CLOUD,
    PricedJob,
    configuration_name,
    precision_features,
    price_per_second,
    priced_table,
)

FEWEST_WAYS = 12
"""Published configurations of a model below which a search that makes 6 to 8 runs has nothing to save."""
PUBLISHED_SAMPLES = 1_000_000
"""Samples that every published configuration is timed for; all costs scale with it alike."""


def published_configurations(rows: Sequence[MeasuredJob], price: str = CLOUD) -> dict[str, Configurations]:
    """Model and input -> configurations that were measured and published, timed as whole instances with those GPUs.

    Seconds are those of `PUBLISHED_SAMPLES` at the measured step. Most rows are from machines of NVIDIA's own, so a
    cloud's clocks and fabric may differ; that is left aside. Of equal configurations (other frameworks) the faster
    counts. GPUs that the provider does not rent are left out, and models with fewer than `FEWEST_WAYS` are.
    """
    groups: dict[str, dict[str, PricedJob]] = {}
    for row in rows:
        job = row.job
        if not job.layout_spec.plain or job.batch_size is None:
            continue
        try:
            per_s = price_per_second(job.gpu, job.gpus, price)
        except CatalogError:
            continue
        seconds = row.seconds / steps_of(job) * PUBLISHED_SAMPLES / global_batch_size(job)
        sizes = ", ".join(f"{name} {_size(value)}" for name, value in sorted(job.input.items()))
        group = groups.setdefault(f"{job.model}, {sizes}", {})
        name = configuration_name(job)
        if name not in group or seconds < group[name][1]:
            group[name] = (job, seconds, per_s)
    return {name: priced_table(list(group.values())) for name, group in groups.items() if len(group) >= FEWEST_WAYS}


def _size(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


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
            {
                "log_gpus": math.log(r.job.gpus),
                "log_batch": math.log(r.job.batch_size or 1),
                **precision_features(r.job.precision),
            }
            for r in rows
        ],
        [f"{r.job.gpus} x {r.job.gpu}, {r.precision}, batch {r.job.batch_size}" for r in rows],
        [float(r.job.gpus) for r in rows],
        [(r.precision, r.job.batch_size or 1, r.job.gpus) for r in rows],
        [r.seconds for r in rows],
    )
