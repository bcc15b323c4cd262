"""The loader of one job: seconds of storage, workers and cores for a step's samples, and how long training waits.

Every node has `loaders` ranks with workers. A worker reads a missed sample, writes it to the cache, decodes it and
batches it, in this order. A step of B samples on a node is not shorter than any of

    storage     m B max(bytes / bandwidth, 1 / requests)              m: share of samples not in the cache
    workers     B / loaders (d + m (latency + bytes / stream + k)) / workers
                                              d: seconds to prepare a sample, k: to write one to the cache
    cores       B (d + m (k + r)) / cores     r: seconds of a core to read a sample
    copy        bytes of the batches over PCIe, where memory is pinned and the copy runs behind compute

nor than training. The queue of batches hides everything else; without workers, loading and training alternate. On a CPU
device training and preparation share the cores: a step takes the core-seconds of both over all cores.

A single reader sends no requests while it batches (or, without workers, trains), and a request-limited storage does not
save up unused requests: see `_alone_s`. With a prefetch factor of 1 a worker is told its next batch only when training
has received the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from precision_time.hardware.storage import Storage
from precision_time.ingest.pipeline.cache import lru_hits, no_eviction_hits
from precision_time.ingest.pipeline.first_epoch import first_lru_hits
from precision_time.ingest.pipeline.formats import WORKER_START_S

BANDWIDTH, REQUESTS, LATENCY, STREAM = "storage bandwidth", "storage requests", "storage latency", "one reader's rate"
WORKERS, CORES, TRAINING, COPY = "decode workers", "cores", "cores shared with training", "copy to the device"
_STORAGE = (BANDWIDTH, REQUESTS)
_ENOUGH = 1e-9
"""Times that differ by less are equal."""
_STEADY = 1e-3
"""A cache counts as warm when its hit share is this near to its final value."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Times are seconds, sizes bytes.

    samples_per_step  of all ranks; batches_per_step  micro-steps: batches of a rank in a step
    nodes, loaders    nodes that load, and ranks with a loader on the fullest
    ranks             ranks with a loader on all nodes; 0: all nodes are full
    prepare_s         one core, to decode, augment and batch a sample
    batch_s           part of a batch's prepare_s at its end, when nothing is read: collating and handing over
    keep_s            one core, to write a missed sample to the cache and return to decoding
    read_core_s       core time of reading a missed sample
    handoff_s         from a ready batch to the next order, while training is free to receive it
    samples_per_read  samples that one request brings
    cores             cores of a node for workers, without one for each rank; None: enough
    training_cores    of these, cores that training keeps busy (CPU devices only)
    copy_s            batches of a step to the device; pinned: behind compute
    samples           of an epoch; None: not known, and nothing can be cached
    capacity          share of all samples that a node's cache holds; policy: "lru" or "no-eviction"
    cached            share of the samples in it at the start
    """

    samples_per_step: float
    bytes_per_sample: float
    prepare_s: float
    storage: Storage
    workers: int
    batches_per_step: int = 1
    nodes: int = 1
    loaders: int = 1
    samples_per_read: float = 1.0
    prefetch_factor: int = 2
    cores: float | None = None
    training_cores: float = 0.0
    copy_s: float = 0.0
    pinned: bool = True
    samples: float | None = None
    capacity: float = 0.0
    policy: str = "lru"
    cached: float = 0.0
    prepare_spread: float = 0.0
    batch_s: float = 0.0
    keep_s: float = 0.0
    read_core_s: float = 0.0
    handoff_s: float = 0.0
    ranks: int = 0

    @property
    def samples_per_loader(self) -> float:
        return self.samples_per_step / (self.ranks or self.nodes * self.loaders)

    @property
    def samples_per_node(self) -> float:
        """Samples of a step that the fullest node loads."""
        return self.samples_per_loader * self.loaders

    @property
    def request_s(self) -> float:
        """Seconds of one reader to a sample's first byte."""
        return self.storage.latency_s / self.samples_per_read

    @property
    def stream_s(self) -> float:
        """Seconds of one reader for a sample's bytes."""
        return self.bytes_per_sample / self.storage.stream_bytes_per_s

    @property
    def storage_sample_s(self) -> float:
        """Seconds that the storage is busy with a sample of the fullest node and what others read meanwhile."""
        busy = self.bytes_per_sample / self.storage.bytes_per_s
        if self.storage.requests_per_s is not None:
            busy = max(busy, 1.0 / (self.storage.requests_per_s * self.samples_per_read))
        return busy * (self.samples_per_step / self.samples_per_node if self.storage.shared else 1.0)

    def parts(self, miss: float) -> dict[str, float]:
        """Seconds of a step by what could be the limit."""
        missed = miss * (self.samples_per_step if self.storage.shared else self.samples_per_node)
        estimates = {BANDWIDTH: missed * self.bytes_per_sample / self.storage.bytes_per_s}
        if self.storage.requests_per_s is not None:
            estimates[REQUESTS] = missed / self.samples_per_read / self.storage.requests_per_s
        estimates[self._worker_part(miss)] = self.worker_s(miss) / max(self.workers, 1)
        if self.cores is not None:
            estimates[CORES] = self.core_s(miss) / self.cores
        if self.pinned and self.copy_s:
            estimates[COPY] = self.copy_s
        return estimates

    def worker_s(self, miss: float) -> float:
        """Seconds of one worker for a rank's samples of a step."""
        waits_s = self.handoff_s * self.batches_per_step if self.prefetch_factor == 1 and self.workers else 0.0
        sample_s = self.prepare_s + miss * (self.keep_s + self.request_s + self.stream_s)
        return self.samples_per_loader * sample_s + waits_s

    def core_s(self, miss: float) -> float:
        """Seconds of cores for a node's samples of a step."""
        return self.samples_per_node * (self.prepare_s + miss * (self.keep_s + self.read_core_s))

    def _worker_part(self, miss: float) -> str:
        if self.prepare_s + miss * self.keep_s >= miss * (self.request_s + self.stream_s):
            return WORKERS
        return LATENCY if self.request_s >= self.stream_s else STREAM

    def period_s(self, miss: float) -> float:
        """Seconds between batches of the loader alone, for a whole step."""
        missed = miss * self.samples_per_node * self.storage_sample_s
        cores = 0.0 if self.cores is None else self.core_s(miss) / self.cores
        alone = self._alone_s(miss) if self._reads_alone else 0.0
        copy = self.copy_s if self.pinned else 0.0
        return max(missed, self.worker_s(miss) / max(self.workers, 1), cores, copy, alone)

    @property
    def _reads_alone(self) -> bool:
        """Whether a single process reads from this storage."""
        return self.loaders * (self.nodes if self.storage.shared else 1) == 1 and self.workers <= 1

    def _alone_s(self, miss: float, train_s: float = 0.0) -> float:
        """Seconds of a step whose only reader pauses once in every batch.

        Two reads are apart by at least the storage's and the reader's seconds for a sample; at a batch's end the reader
        needs `batch_s` more, and `train_s` where it trains too. A request-limited storage then answers one request at
        once, but not two.
        """
        batches = float(self.batches_per_step)
        samples = self.samples_per_loader / batches
        pause_s = min(self.batch_s, self.prepare_s * samples) + train_s / batches
        reads = miss * samples
        own_s = self.worker_s(miss) / batches + train_s / batches  # of a batch
        if reads <= 1.0:
            return batches * max(reads * self.storage_sample_s, own_s)
        between_s = (own_s - pause_s) / reads
        busy_s = self.storage_sample_s
        return batches * ((reads - 1.0) * max(busy_s, between_s) + max(busy_s, between_s + pause_s))

    def step_s(self, train_s: float, miss: float) -> float:
        """Seconds of a step of which training takes `train_s`."""
        busy = train_s + (0.0 if self.pinned else self.copy_s)
        if not self.workers:
            if not self._reads_alone:
                return busy + self.period_s(miss)
            cores = 0.0 if self.cores is None else self.core_s(miss) / self.cores
            return max(self._alone_s(miss, busy), busy + max(cores, self.copy_s if self.pinned else 0.0))
        return max(busy, self.period_s(miss), self.shared_cores_s(train_s, miss))

    def shared_cores_s(self, train_s: float, miss: float) -> float:
        """On a CPU device: seconds in which the cores both train and load a step."""
        if not self.training_cores or self.cores is None:
            return 0.0
        return (train_s * self.training_cores + self.core_s(miss)) / self.cores

    def stall_s(self, train_s: float, miss: float) -> float:
        return max(self.step_s(train_s, miss) - train_s, 0.0)

    def binding(self, train_s: float, miss: float) -> str:
        """Name of the resource that limits the loader."""
        parts = self.parts(miss)
        name = max(parts, key=parts.__getitem__)
        shared = self.shared_cores_s(train_s, miss) if self.workers else 0.0
        if shared > max(train_s, parts[name]) + _ENOUGH:
            return TRAINING
        if not self.pinned and max(train_s, parts[name]) < train_s + self.copy_s:
            return COPY
        return name

    def epoch_s(self, train_s: float, miss: float, steps: float) -> float:
        """Seconds of an epoch of `steps`, with starting the workers, filling the queue and draining it.

        The workers start at the same time and share the limiting resource, so batches arrive in groups of one for each
        worker; training waits for the first group or for the last.
        """
        if not self.workers or steps <= 0:
            return steps * self.step_s(train_s, miss)
        batches = steps * self.batches_per_step
        group = min(float(self.workers), batches)
        worker_s, period_s = self.worker_s(miss), self.period_s(miss)
        group_s = max(worker_s, group * period_s) / self.batches_per_step
        busy = train_s + (0.0 if self.pinned else self.copy_s)
        batch_s = max(busy, self.shared_cores_s(train_s, miss)) / self.batches_per_step
        rounds = math.ceil(batches / group - _ENOUGH)
        last = batches - (rounds - 1) * group
        last_s = max(worker_s, last * period_s) / self.batches_per_step
        behind = (rounds - 1) * group_s + last_s + last * batch_s
        return WORKER_START_S * self.workers + max(group_s + batches * batch_s, behind)

    # --- what is in the cache -------------------------------------------------------------------------------------

    def first_miss(self) -> float:
        """Share of misses in the first epoch."""
        if self.nodes == 1 and self.policy == "lru":
            return 1.0 - first_lru_hits(self.capacity, self.cached)
        return 1.0 - min(self.cached, self.capacity)

    def later_misses(self, epochs: float | None = None) -> list[tuple[float, float]]:
        """(epochs, share of misses) of the epochs after the first; without a number of epochs, the steady share.

        Several nodes draw new samples in every epoch, so their caches fill over several epochs: after e epochs a node
        has read 1 - (1 - 1/nodes)^e of the data. A full cache hits the share of its capacity.
        """
        if self.nodes == 1:
            hit = lru_hits(self.capacity) if self.policy == "lru" else no_eviction_hits(self.capacity)
            return [(1.0 if epochs is None else epochs - 1.0, 1.0 - hit)]
        most = min(self.capacity, 1.0)
        if epochs is None or not most:
            return [(1.0 if epochs is None else epochs - 1.0, 1.0 - most)]
        return list(self._warming(epochs - 1.0, most))

    def _warming(self, left: float, most: float) -> Iterator[tuple[float, float]]:
        """Groups of epochs, longer as the cache fills, with the mean share of misses of each group."""
        unseen_share = 1.0 - 1.0 / self.nodes
        unseen, epoch = 1.0 - self.cached, 1
        while left > 0:
            unseen *= unseen_share
            count = min(float(max(1, epoch // 4)), left)
            if unseen <= 1.0 - most + _STEADY:
                yield left, 1.0 - most
                return
            mean = unseen * (1.0 - unseen_share**count) / (count * (1.0 - unseen_share)) if count > 1 else unseen
            yield count, max(mean, 1.0 - most)
            unseen *= unseen_share ** (count - 1.0) if count > 1 else 1.0
            left -= count
            epoch += int(count)

    def _late(self, train_s: float, miss: float) -> bool:
        return self._alone_s(miss) > train_s * (1.0 + _ENOUGH)

    def _fed(self, too_slow: Mapping[str, float], train_s: float) -> Loader:
        """This loader with a storage fast enough for training."""
        storage, more = self.storage, {name: too_slow[name] / train_s for name in _STORAGE if name in too_slow}
        return replace(
            self,
            storage=replace(
                storage,
                bytes_per_s=storage.bytes_per_s * more.get(BANDWIDTH, 1.0),
                requests_per_s=storage.requests_per_s and storage.requests_per_s * more.get(REQUESTS, 1.0),
            ),
        )

    # --- other loaders ----------------------------------------------------------------------------------------------

    def slower(self, storage_factor: float, prepare_factor: float) -> Loader:
        """This loader with storage and preparation slower by these factors."""
        storage = self.storage
        return replace(
            self,
            prepare_s=self.prepare_s * prepare_factor,
            batch_s=self.batch_s * prepare_factor,
            keep_s=self.keep_s * prepare_factor,
            read_core_s=self.read_core_s * prepare_factor,
            handoff_s=self.handoff_s * prepare_factor,
            storage=replace(
                storage,
                bytes_per_s=storage.bytes_per_s / storage_factor,
                stream_bytes_per_s=storage.stream_bytes_per_s / storage_factor,
                latency_s=storage.latency_s * storage_factor,
                requests_per_s=None if storage.requests_per_s is None else storage.requests_per_s / storage_factor,
            ),
        )

    def remedy(self, train_s: float, miss: float) -> Remedy:
        """The least of each resource with which training hides loading."""
        parts = self.parts(miss)
        too_slow = {name: seconds for name, seconds in parts.items() if seconds > train_s * (1.0 + _ENOUGH)}
        per_step = {name: parts[name] / train_s for name in _STORAGE if name in too_slow}
        worker = self._worker_part(miss)
        one = replace(self, workers=max(self.workers, 1))
        count = max(1, math.ceil(one.worker_s(miss) / train_s - _ENOUGH))
        # Storage and worker may each be fast enough, and the storage still idle while its only reader batches.
        rests = count == one.workers == 1 and one._reads_alone and one._fed(too_slow, train_s)._late(train_s, miss)
        cores = None
        if CORES in too_slow or self.shared_cores_s(train_s, miss) > train_s * (1.0 + _ENOUGH):
            cores = math.ceil(self.core_s(miss) / train_s + (self.training_cores or self.loaders) - _ENOUGH)
        return Remedy(
            workers=count + rests if worker in too_slow or rests or not self.workers else None,
            bytes_per_s=self.storage.bytes_per_s * per_step[BANDWIDTH] if BANDWIDTH in per_step else None,
            requests_per_s=(self.storage.requests_per_s or 0.0) * per_step[REQUESTS] if REQUESTS in per_step else None,
            cores=cores,
            copy=COPY in too_slow or (not self.pinned and self.copy_s > 0.0),
            pinned=self.pinned,
        )


@dataclass(frozen=True, slots=True)
class Remedy:
    """The resources that are short, and the amounts that suffice; None: enough. All of them together hide the
    loader."""

    workers: int | None = None
    bytes_per_s: float | None = None
    requests_per_s: float | None = None
    cores: int | None = None
    """Cores of a node, with those of training."""
    copy: bool = False
    pinned: bool = True

    @property
    def needs(self) -> tuple[str, ...]:
        """The missing resources as phrases."""
        needs = []
        if self.workers is not None:
            needs.append(f"{self.workers} worker{'s' if self.workers > 1 else ''} per rank")
        if self.bytes_per_s is not None:
            needs.append(f"{self.bytes_per_s / 1e9:.3g} GB/s")
        if self.requests_per_s is not None:
            needs.append(f"{self.requests_per_s:,.0f} requests per second")
        if self.cores is not None:
            needs.append(f"{self.cores} cores")
        if self.copy:
            needs.append("smaller prepared samples" if self.pinned else "pinned memory")
        return tuple(needs)

    @property
    def workers_alone(self) -> int | None:
        """Workers per rank that hide the loader by themselves; None where something else is short too."""
        return self.workers if len(self.needs) == 1 else None

    @property
    def bandwidth_alone(self) -> float | None:
        """Storage bytes per second that hide the loader by themselves; None where something else is short too."""
        return self.bytes_per_s if len(self.needs) == 1 else None
