"""From a job's `data` section to its loader, with the assumptions made for missing fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any, Protocol

from precision_time.errors import IngestError
from precision_time.hardware.fabric import Cluster
from precision_time.hardware.storage import Storage, storage
from precision_time.ingest.pipeline.formats import FORMAT_SPREAD, PREPARATIONS, STATED_SPREAD
from precision_time.ingest.pipeline.loader import Loader
from precision_time.job.data import Data
from precision_time.job.dataset_files import DATASET_FILES
from precision_time.job.datasets import DATASETS, samples_per_epoch
from precision_time.job.job import Job

DEFAULT_WORKERS = 4
"""Workers of each rank. PyTorch's default is 0, which training scripts override."""
DEFAULT_PREFETCH = 2
"""PyTorch's."""
PAGE_CACHE_SHARE = 0.8
"""Share of a node's memory that the page cache may fill: assumed."""
PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9}
"""Pinned copies over 16 lanes by generation: three quarters of the line, as bandwidth tests show (recalled)."""
PAGEABLE_SHARE = 0.4
"""Of a pinned copy's rate, from memory that is not pinned and goes through a buffer: assumed."""


class Sampled(Protocol):
    """The facts of a traced step that the loader needs."""

    @property
    def batch_size(self) -> int: ...
    @property
    def dataset(self) -> str | None: ...
    @property
    def sizes(self) -> Mapping[str, Any]: ...


def loader_of(job: Job, step: Sampled, cluster: Cluster) -> tuple[Loader, tuple[str, ...]]:
    """The loader of a job with a `data` section, and the assumptions made, as sentences."""
    data = job.data
    notes: list[str] = []
    chosen = _storage(data, notes)
    samples = _samples(job, step)
    nbytes, format_name, per_read = _files(job, step, notes)
    if data.prepare_s is None:
        prepare_s, spread = PREPARATIONS[format_name].seconds(nbytes), FORMAT_SPREAD
        notes.append(f"a worker prepares a {format_name} sample in {prepare_s * 1e3:.3g} ms (decode_ms)")
    else:
        prepare_s, spread = data.prepare_s, STATED_SPREAD
    workers = DEFAULT_WORKERS if data.workers is None else data.workers
    if data.workers is None:
        notes.append(f"{workers} loader workers per rank")
    replicas = job.layout_spec.dp  # the ranks of one replica share its samples, and one of them loads
    nodes = min(cluster.nodes, replicas)
    loaders = ceil(replicas * cluster.gpus_per_node / cluster.gpus)  # on the fullest node
    cores, training = _cores(data, cluster, loaders, notes)
    capacity, policy = _cache(data, chosen, cluster, samples, nbytes, notes)
    return Loader(
        samples_per_step=step.batch_size * job.grad_accum * replicas,
        bytes_per_sample=nbytes,
        prepare_s=prepare_s,
        storage=chosen,
        workers=workers,
        batches_per_step=job.grad_accum,
        nodes=nodes,
        loaders=loaders,
        samples_per_read=per_read,
        prefetch_factor=data.prefetch_factor or DEFAULT_PREFETCH,
        cores=cores,
        training_cores=training,
        copy_s=_copy_s(job, step, cluster, nbytes),
        pinned=data.pin_memory is not False,
        samples=samples,
        capacity=capacity,
        policy=policy,
        cached=data.cached or 0.0,
        prepare_spread=spread,
        keep_s=(data.keep_ms or 0.0) / 1e3,
        ranks=replicas,
    ), tuple(notes)


def _storage(data: Data, notes: list[str]) -> Storage:
    """The storage of the catalog or of a file, with the fields that the job overrides."""
    if data.storage is not None:
        base = storage(data.storage)
        if not base.measured:
            notes.append(f"storage as usual for {base.name}; calibrate --storage measures yours")
    else:
        rate = (data.bandwidth_gb_per_s or 0.0) * 1e9
        base = Storage("given", rate, rate, 0.0, source="given by the job")
    overrides: dict[str, Any] = {
        "bytes_per_s": data.bandwidth_gb_per_s and data.bandwidth_gb_per_s * 1e9,
        "stream_bytes_per_s": data.stream_mb_per_s and data.stream_mb_per_s * 1e6,
        "latency_s": None if data.latency_ms is None else data.latency_ms / 1e3,
        "requests_per_s": data.requests_per_s,
        "reader_efficiency": data.reader_efficiency,
        "shared": data.shared,
    }
    overrides = {name: value for name, value in overrides.items() if value is not None}
    rate = overrides.get("bytes_per_s", base.bytes_per_s)
    if "stream_bytes_per_s" not in overrides and base.stream_bytes_per_s > rate:
        overrides["stream_bytes_per_s"] = rate  # one reader gets no more than all
    return replace(base, **overrides) if overrides else base


def _dataset(job: Job, step: Sampled) -> str | None:
    return job.run.dataset or step.dataset


def _samples(job: Job, step: Sampled) -> float | None:
    if job.data.samples is not None:
        return job.data.samples
    if job.run.dataset_size is not None:
        return job.run.dataset_size
    name = _dataset(job, step)
    if name is None or name not in DATASETS:
        return None
    seq_len = step.sizes.get("seq_len")
    if DATASETS[name].counts_tokens and seq_len is None:
        return None
    return samples_per_epoch(name, seq_len)


def _files(job: Job, step: Sampled, notes: list[str]) -> tuple[float, str, float]:
    """Stored bytes of a sample, its format, and samples per read."""
    data, name = job.data, _dataset(job, step)
    files = DATASET_FILES.get(name or "")
    nbytes, form = data.bytes_per_sample, data.format
    if nbytes is None:
        if files is None:
            what = f"dataset {name!r} has no entry of its files" if name else "the job names no data set"
            raise IngestError(
                f"data has no bytes_per_sample, and {what}; add bytes_per_sample, or a run.dataset out of "
                f"{', '.join(DATASET_FILES)}"
            )
        nbytes = files.bytes_per_unit
        if name in DATASETS and DATASETS[name].counts_tokens:
            nbytes *= step.sizes.get("seq_len", 1)
        notes.append(f"samples of {nbytes:,.0f} bytes, as {name}'s (bytes_per_sample)")
    if form is None:
        if files is None and data.prepare_s is None:
            raise IngestError(
                f"data has neither format nor decode_ms, and the job names no data set that says it; add format "
                f"({', '.join(PREPARATIONS)}) or decode_ms"
            )
        form = files.format if files is not None else "raw"
    per_read = data.samples_per_read or (files.samples_per_read if files is not None else 1.0)
    return float(nbytes), form, per_read


def _cores(data: Data, cluster: Cluster, loaders: int, notes: list[str]) -> tuple[float | None, float]:
    """Cores of a node for workers, and on a CPU device the cores that training keeps busy."""
    if cluster.gpu.device_type == "cpu":
        threads = (cluster.gpu.calibration.threads if cluster.gpu.calibration else None) or 1
        training = threads * cluster.gpus_per_node
        total = max(data.cores or training, training)
        notes.append(f"training keeps {training} of {total} cores busy, and workers share them")
        return float(total), float(training)
    total = data.cores or cluster.node.cores or 0
    if not total:
        notes.append(f"cores enough for all workers: the catalog does not know those of {cluster.node.name} (cores)")
        return None, 0.0
    return float(max(total - loaders, 1)), 0.0


def _cache(
    data: Data, chosen: Storage, cluster: Cluster, samples: float | None, nbytes: float, notes: list[str]
) -> tuple[float, str]:
    """Share of the samples that a node's cache holds, and its policy."""
    kind = data.cache or ("page-cache" if chosen.page_cache else "none")
    policy = data.cache_policy or ("no-eviction" if kind == "explicit" else "lru")
    if kind == "none":
        return 0.0, policy
    if samples is None:
        raise IngestError(
            f"data cache {kind} needs the number of samples; add data.samples or run.dataset, or set cache to none"
        )
    if data.cache_gib is not None:
        capacity = data.cache_gib * 2**30
    else:
        memory = cluster.node.host_memory_bytes
        if memory is None and cluster.gpu.device_type == "cpu":  # its memory is shared out over the ranks of a node
            memory = cluster.gpu.memory_bytes * cluster.node.gpus_per_node
        if memory is None:
            raise IngestError(
                f"data cache page-cache has no size, and the catalog does not know the memory of {cluster.node.name}; "
                f"add cache_gib (memory left for files on a node), or set cache to none"
            )
        capacity = PAGE_CACHE_SHARE * memory
        notes.append(
            f"page cache of {capacity / 2**30:,.0f} GiB a node, {PAGE_CACHE_SHARE:.0%} of its memory (cache_gib)"
        )
    return min(capacity / (samples * nbytes), 1.0), policy


def _copy_s(job: Job, step: Sampled, cluster: Cluster, nbytes: float) -> float:
    """Seconds to copy a rank's batches of one step to its device."""
    if cluster.gpu.device_type == "cpu":
        return 0.0
    rate = PCIE_BYTES_PER_S[min(max(cluster.gpu.pcie_gen or 3, 3), 5)] * (cluster.gpu.pcie_lanes or 16) / 16
    if job.data.pin_memory is False:
        rate *= PAGEABLE_SHARE
    size = job.data.prepared_bytes or _prepared_bytes(step.sizes, nbytes)
    return step.batch_size * job.grad_accum * size / rate


def _prepared_bytes(sizes: Mapping[str, Any], nbytes: float) -> float:
    """Bytes of a sample as model input: float32 images, int64 tokens; otherwise the stored bytes."""
    if (edge := sizes.get("image_size")) is not None:
        height, width = edge if isinstance(edge, tuple) else (edge, edge)
        return float(4 * height * width * sizes.get("channels", 3))
    if (length := sizes.get("seq_len")) is not None:
        return float(8 * length)
    return nbytes
