"""Rates of jobs that share a node, from descriptions of their loaders instead of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precision_time.errors import IngestError
from precision_time.ingest.model.rates import JobRates, Slowdowns
from precision_time.ingest.pipeline.loader import Loader


def job_rates(
    name: str,
    loader: Loader,
    train_s: float,
    epochs: float = 1.0,
    *,
    start_up_s: float = 0.0,
    parts: Mapping[str, float] | None = None,
) -> JobRates:
    """The rates of a job whose step trains for `train_s` seconds (`estimate.step` without its `loader_stall`).

    Times with all hits and all misses are those of the loader; `overlap` reproduces its time with half of each.
    """
    if loader.samples is None:
        raise IngestError(f"job {name!r} has no number of samples; add data.samples or run.dataset")
    per_sample = 1.0 / loader.samples_per_step
    hot, half, cold = (loader.step_s(train_s, miss) * per_sample for miss in (0.0, 0.5, 1.0))
    storage = cold if cold > hot else _hidden_storage_s(loader)
    one_by_one = (storage + hot) / 2.0
    overlapped = max(hot, storage / 2.0)
    gap = one_by_one - overlapped
    overlap = min(max((one_by_one - half) / gap, 0.0), 1.0) if cold > hot and gap > 0.0 else 1.0
    return JobRates(
        name=name,
        samples=int(loader.samples),
        epochs=epochs,
        hot_s=hot,
        storage_s=storage,
        overlap=overlap,
        start_up_s=start_up_s,
        parts=parts if parts is not None else {"data": 1.0},
        cached=loader.cached,
        bytes_per_sample=loader.bytes_per_sample,
    )


def _hidden_storage_s(loader: Loader) -> float:
    """Seconds per sample that the whole job's reads take, where training hides them."""
    readers = max(loader.workers, 1) * loader.loaders
    return max(loader.storage_sample_s, (loader.request_s + loader.stream_s + loader.keep_s) / readers) / loader.nodes


def slowdowns_of(loaders: Sequence[Loader], train_s: Sequence[float], rates: Sequence[JobRates]) -> Slowdowns:
    """How such jobs slow each other, from the shares of cores and of a common storage that each uses.

    Jobs that use less than the capacity in total do not slow each other. Accelerators are not shared.
    """
    hot_use = [_cores_share(each, seconds) for each, seconds in zip(loaders, train_s, strict=True)]
    use = [each.storage_sample_s / each.nodes / rate.storage_s for each, rate in zip(loaders, rates, strict=True)]
    count = range(len(loaders))
    hot = [[1.0 if i == j else max(1.0, hot_use[i] + hot_use[j]) for j in count] for i in count]
    storage = [
        [1.0 if i == j else _storage_contention(loaders[i], loaders[j], use[i] + use[j]) for j in count] for i in count
    ]
    return Slowdowns(hot=tuple(map(tuple, hot)), storage=tuple(map(tuple, storage)))


def _cores_share(loader: Loader, train_s: float) -> float:
    """Share of a node's cores that a job uses while every sample is a hit."""
    if loader.cores is None:
        return 0.0
    busy_s = train_s * loader.training_cores + loader.core_s(0.0)
    return busy_s / (loader.cores * loader.step_s(train_s, 0.0))


def _storage_contention(one: Loader, other: Loader, use: float) -> float:
    """Slowdown of two readers of one storage; `use`: sum of the shares that each uses alone."""
    if one.storage.name != other.storage.name:
        return 1.0
    return max(1.0, use / min(one.storage.reader_efficiency, other.storage.reader_efficiency))
