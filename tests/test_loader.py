"""The loader from first principles: cases worked by hand, small simulations of the same, and what must always hold."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_time.errors import IngestError
from precision_time.hardware.storage import Storage
from precision_time.ingest.pipeline.cache import lru_hits, no_eviction_hits
from precision_time.ingest.pipeline.first_epoch import first_lru_hits
from precision_time.ingest.pipeline.formats import PREPARATIONS, WORKER_START_S
from precision_time.ingest.pipeline.loader import (
    BANDWIDTH,
    COPY,
    CORES,
    LATENCY,
    REQUESTS,
    STREAM,
    TRAINING,
    WORKERS,
    Loader,
)
from precision_time.ingest.pipeline.predicted import job_rates, slowdowns_of

NFS = Storage("nfs", bytes_per_s=1e9, stream_bytes_per_s=400e6, latency_s=1e-3, shared=True)
IMAGENET = Loader(
    samples_per_step=2048, bytes_per_sample=110e3, prepare_s=3e-3, storage=NFS, workers=8, loaders=8, cores=120,
    samples=1_281_167, capacity=1.0,
)  # fmt: skip
"""ResNet-50 at 256 a GPU on eight A100, from a file server of 1 GB/s."""
TRAIN = 0.14


# --- by hand ----------------------------------------------------------------------------------------------------


def test_imagenet_from_a_file_server_of_one_gigabyte_per_second() -> None:
    parts = IMAGENET.parts(1.0)
    assert parts[BANDWIDTH] == pytest.approx(2048 * 110e3 / 1e9)  # 0.225 s
    assert parts[WORKERS] == pytest.approx(256 * (3e-3 + 1e-3 + 110e3 / 400e6) / 8)  # 0.137 s: decoding is most of it
    assert parts[CORES] == pytest.approx(2048 * 3e-3 / 120)  # 0.051 s
    assert IMAGENET.step_s(TRAIN, 1.0) == pytest.approx(0.22528)
    assert IMAGENET.stall_s(TRAIN, 1.0) == pytest.approx(0.08528)
    assert IMAGENET.binding(TRAIN, 1.0) == BANDWIDTH
    remedy = IMAGENET.remedy(TRAIN, 1.0)
    assert remedy.bandwidth_alone == pytest.approx(225.28e6 / 0.14)  # 1.61 GB/s
    assert remedy.workers_alone is None
    assert remedy.needs == ("1.61 GB/s",)
    # from the cache the workers have 256 x 3 ms / 8 = 96 ms of work, behind 140 ms of training
    assert IMAGENET.first_miss() == 1.0
    assert IMAGENET.later_misses() == [(1.0, 0.0)]
    assert IMAGENET.period_s(0.0) == pytest.approx(0.096)
    assert IMAGENET.stall_s(TRAIN, 0.0) == 0.0
    # 78 rounds of 8 batches, then two for which each of two workers needs 256 x 4.275 ms; they are left to train on
    cold = IMAGENET.epoch_s(TRAIN, 1.0, 626)
    assert cold == pytest.approx(78 * 8 * 0.22528 + 256 * 4.275e-3 + 2 * TRAIN + 8 * WORKER_START_S)
    assert IMAGENET.epoch_s(TRAIN, 0.0, 626) == pytest.approx(626 * TRAIN + 8 * 0.096 + 8 * WORKER_START_S)


def test_two_nodes_share_a_file_server_but_not_their_disks() -> None:
    two = replace(IMAGENET, nodes=2, samples_per_step=4096)
    assert two.parts(1.0)[BANDWIDTH] == pytest.approx(2 * 0.22528)
    assert two.remedy(TRAIN, 1.0).bytes_per_s == pytest.approx(2 * 225.28e6 / 0.14)
    alone = replace(two, storage=replace(NFS, shared=False))
    assert alone.parts(1.0)[BANDWIDTH] == pytest.approx(0.22528)


def test_too_few_workers() -> None:
    fast = replace(IMAGENET, storage=replace(NFS, bytes_per_s=1e11), workers=2)
    # 256 samples of 4.275 ms on each rank, shared by two workers
    assert fast.binding(TRAIN, 1.0) == WORKERS
    assert fast.step_s(TRAIN, 1.0) == pytest.approx(256 * 4.275e-3 / 2)
    assert fast.remedy(TRAIN, 1.0).workers_alone == 8  # 1.0944 s of one worker behind 0.14 s: 7.8
    assert replace(fast, workers=8).stall_s(TRAIN, 1.0) == 0.0
    assert replace(fast, workers=7).stall_s(TRAIN, 1.0) > 0.0


def test_more_workers_do_not_help_without_cores() -> None:
    short = replace(IMAGENET, storage=replace(NFS, bytes_per_s=1e11), cores=24, workers=8)
    assert short.binding(TRAIN, 1.0) == CORES
    assert short.step_s(TRAIN, 1.0) == pytest.approx(2048 * 3e-3 / 24)  # 0.256 s
    remedy = short.remedy(TRAIN, 1.0)
    assert remedy.workers_alone is None
    assert remedy.cores == 52  # 6.144 core-seconds in 0.14 s are 43.9 cores, and one for each of eight ranks
    assert replace(short, cores=44).stall_s(TRAIN, 1.0) == 0.0


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (Storage("disk", 0.2e9, 0.2e9, 12.5e-3, requests_per_s=80), REQUESTS),
        (Storage("far", 1e11, 1e9, 0.3, requests_per_s=1e6), LATENCY),
        (Storage("thin", 1e11, 1e6, 1e-3), STREAM),
    ],
)
def test_what_binds(storage: Storage, expected: str) -> None:
    assert replace(IMAGENET, storage=storage).binding(TRAIN, 1.0) == expected


def test_shards_save_requests() -> None:
    disk = Storage("disk", 0.2e9, 0.2e9, 12.5e-3, requests_per_s=80)
    files = replace(IMAGENET, storage=disk)
    shards = replace(files, samples_per_read=1000)
    assert files.parts(1.0)[REQUESTS] == pytest.approx(2048 / 80)
    assert shards.parts(1.0)[REQUESTS] == pytest.approx(2.048 / 80)
    assert shards.binding(TRAIN, 1.0) == BANDWIDTH


def test_without_workers_loading_and_training_take_turns() -> None:
    alone = replace(IMAGENET, workers=0, loaders=1, samples_per_step=256)
    one = 256 * (3e-3 + 1e-3 + 110e3 / 400e6)
    assert alone.step_s(TRAIN, 1.0) == pytest.approx(TRAIN + one)
    assert alone.epoch_s(TRAIN, 1.0, 10) == pytest.approx(10 * (TRAIN + one))
    assert alone.remedy(TRAIN, 1.0).workers == 8


def test_a_cpu_trains_and_prepares_on_the_same_cores() -> None:
    cpu = replace(IMAGENET, samples_per_step=64, loaders=1, workers=2, cores=4.0, training_cores=4.0,
                  storage=replace(NFS, bytes_per_s=1e11))  # fmt: skip
    # 1 s of four cores and 64 x 3 ms of one: 4.192 core-seconds on four cores
    assert cpu.step_s(1.0, 0.0) == pytest.approx(4.192 / 4)
    assert cpu.binding(1.0, 0.0) == TRAINING
    assert cpu.remedy(1.0, 0.0).cores == 5
    assert replace(cpu, cores=5.0).stall_s(1.0, 0.0) == 0.0


def test_copies() -> None:
    large = replace(IMAGENET, copy_s=0.2)
    assert large.step_s(TRAIN, 0.0) == 0.2
    assert large.binding(TRAIN, 0.0) == COPY
    assert large.remedy(TRAIN, 0.0).needs == ("smaller prepared samples",)
    pageable = replace(IMAGENET, copy_s=0.01, pinned=False)
    assert pageable.step_s(TRAIN, 0.0) == pytest.approx(0.15)  # not behind compute
    assert pageable.binding(TRAIN, 0.0) == COPY
    assert pageable.remedy(TRAIN, 0.0).needs == ("pinned memory",)


BUCKET = Storage("bucket", bytes_per_s=1e12, stream_bytes_per_s=1e12, latency_s=1e-3, requests_per_s=200.0)
ALONE = Loader(4, 1.0, 2.5e-3, BUCKET, workers=1, batch_s=6e-3)
"""Batches of four: a sample takes 1 ms to its first byte and 1 ms to decode, a batch 6 ms at its end."""


def test_one_reader_asks_for_nothing_at_the_end_of_its_batch() -> None:
    # 5 ms between two answers of the storage, of which the reader needs 2; at the end of a batch it needs 2 + 6.
    assert ALONE.step_s(0.01, 1.0) == pytest.approx(3 * 5e-3 + 8e-3)
    assert replace(ALONE, prepare_s=1.75e-3, batch_s=3e-3).step_s(0.01, 1.0) == pytest.approx(20e-3)  # back in time
    assert replace(ALONE, workers=2).step_s(0.01, 1.0) == pytest.approx(20e-3)  # the other reads meanwhile
    assert replace(ALONE, workers=0).step_s(0.01, 1.0) == pytest.approx(3 * 5e-3 + 18e-3)  # it trains too
    # half in the cache: 2 reads of 1 ms in 11 ms of a batch, so 2.5 ms beside the 6 at its end
    assert ALONE.step_s(0.01, 0.5) == pytest.approx(5e-3 + (12e-3 - 6e-3) / 2 + 6e-3)
    assert ALONE.step_s(0.001, 0.0) == pytest.approx(10e-3)
    # a device that is busy for as long as a read takes has nothing to be back in time for
    disk = replace(ALONE, storage=replace(BUCKET, latency_s=5e-3))
    assert disk.step_s(0.01, 1.0) == pytest.approx(4 * 7.5e-3)
    remedy = ALONE.remedy(0.021, 1.0)
    assert remedy.workers_alone == 2
    assert ALONE.remedy(0.024, 1.0).needs == ()


def test_a_miss_takes_cores_too() -> None:
    small = Loader(16, 1.0, 1e-3, replace(BUCKET, requests_per_s=None), workers=2, cores=2.0, training_cores=1.0,
                   keep_s=0.3e-3, read_core_s=0.2e-3)  # fmt: skip
    assert small.worker_s(1.0) == pytest.approx(16 * 2.3e-3)  # 1 ms to decode, 1 ms to read, 0.3 ms to keep it
    assert small.step_s(8e-3, 0.0) == pytest.approx((8e-3 + 16e-3) / 2)
    # two workers alone would take 18.4 ms; on two cores 16 x 1.5 ms and 14 ms of training take more
    assert small.step_s(14e-3, 1.0) == pytest.approx((14e-3 + 24e-3) / 2)
    assert small.binding(14e-3, 1.0) == TRAINING
    assert replace(small, training_cores=0.0).parts(1.0)[CORES] == pytest.approx(12e-3)


def test_a_worker_that_prepares_one_batch_ahead_waits_for_its_order() -> None:
    loader = Loader(4, 0.0, 2.5e-3, NFS, workers=1, handoff_s=2e-3)
    assert loader.step_s(1e-3, 0.0) == pytest.approx(10e-3)
    one = replace(loader, prefetch_factor=1)
    assert one.step_s(1e-3, 0.0) == pytest.approx(12e-3)
    assert replace(one, workers=2).step_s(1e-3, 0.0) == pytest.approx(6e-3)
    assert one.step_s(20e-3, 0.0) == 20e-3


# --- beside a simulation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("requests_per_s", [50.0, 150.0, 300.0, 450.0, 2000.0])
@pytest.mark.parametrize("end_s", [0.0, 2e-3, 20e-3])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_one_reader_is_that_of_a_simulated_bucket(
    workers: int, requests_per_s: float, end_s: float, batch: int
) -> None:
    """A server that answers the next request no sooner than its turn, and saves up none."""
    latency_s, decode_s, train_s, batches = 0.7e-3, 0.8e-3, 0.1e-3, 400
    clock = turn = 0.0
    for _ in range(batches):
        for _ in range(batch):
            clock = max(clock, turn)
            turn = clock + 1.0 / requests_per_s
            clock += latency_s + decode_s
        clock += end_s + (0.0 if workers else train_s)
    loader = Loader(batch, 1.0, decode_s + end_s / batch, replace(BUCKET, latency_s=latency_s,
                    requests_per_s=requests_per_s), workers=workers, batch_s=end_s)  # fmt: skip
    assert loader.step_s(train_s, 1.0) == pytest.approx(clock / batches, rel=0.01)


def simulated(loader: Loader, train_s: float, batches: int) -> float:
    """Workers that make one batch after the other, handed out in turn, each again when one of its own is taken."""
    made = loader.worker_s(0.0)
    ready = [0.0] * batches
    taken = [0.0] * batches
    free = [0.0] * loader.workers
    end = 0.0
    ahead = loader.workers * loader.prefetch_factor
    for index in range(batches):
        asked = taken[index - ahead] if index >= ahead else 0.0
        worker = index % loader.workers
        free[worker] = ready[index] = max(free[worker], asked) + made
        taken[index] = max(ready[index], end)
        end = taken[index] + train_s
    return end


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("train_s", [0.001, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("batches", [5, 40, 41, 200])
def test_an_epoch_is_that_of_the_simulation(workers: int, train_s: float, batches: int) -> None:
    loader = Loader(32, 0.0, 3e-3, NFS, workers)  # 96 ms a batch
    found = loader.epoch_s(train_s, 0.0, batches) - WORKER_START_S * workers
    assert found == pytest.approx(simulated(loader, train_s, batches), rel=0.01)


class Lru:
    def __init__(self, size: int, content: list[int]) -> None:
        self.size, self.held = size, OrderedDict.fromkeys(content)

    def hit(self, sample: int) -> bool:
        found = sample in self.held
        self.held[sample] = None
        self.held.move_to_end(sample)
        if len(self.held) > self.size:
            self.held.popitem(last=False)
        return found


def hits(cache: Lru, order: list[int]) -> float:
    return sum(cache.hit(sample) for sample in order) / len(order)


@pytest.mark.parametrize("capacity", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("cached", [0.0, 0.3, 1.0])
def test_hit_shares_are_those_of_a_cache(capacity: float, cached: float) -> None:
    chance, size = random.Random(1), 10_000
    every = list(range(size))
    start = chance.sample(every, int(min(cached, capacity) * size))
    cache = Lru(int(capacity * size), start)
    assert hits(cache, chance.sample(every, size)) == pytest.approx(first_lru_hits(capacity, cached), abs=0.015)
    hits(cache, chance.sample(every, size))
    assert hits(cache, chance.sample(every, size)) == pytest.approx(lru_hits(capacity), abs=0.015)


def test_caches_of_several_nodes_fill_over_epochs() -> None:
    """Each node reads its part of an order that is drawn anew; later epochs in groups are as all of them one by one."""
    chance, size, nodes, epochs = random.Random(2), 12_000, 4, 12
    every = list(range(size))
    caches = [Lru(size, []) for _ in range(nodes)]
    missed = []
    for _ in range(epochs):
        order = chance.sample(every, size)
        share = size // nodes
        parts = [order[node * share : (node + 1) * share] for node in range(nodes)]
        missed.append(1 - sum(map(hits, caches, parts)) / nodes)
    loader = replace(IMAGENET, nodes=nodes)
    assert loader.first_miss() == missed[0] == 1.0
    told = loader.later_misses(epochs)
    assert sum(weight for weight, _ in told) == pytest.approx(epochs - 1)
    assert sum(weight * miss for weight, miss in told) == pytest.approx(sum(missed[1:]), abs=0.03)
    assert told[0] == (1.0, pytest.approx(0.75))
    assert loader.later_misses(1000)[-1][1] == 0.0
    assert len(loader.later_misses(1000)) < 40


# --- always -----------------------------------------------------------------------------------------------------

storages = st.builds(
    Storage,
    st.just("any"),
    bytes_per_s=st.floats(1e6, 1e11),
    stream_bytes_per_s=st.floats(1e6, 1e10),
    latency_s=st.just(0.0) | st.floats(1e-6, 0.1),
    requests_per_s=st.none() | st.floats(10, 1e6),
    shared=st.booleans(),
)
loaders = st.builds(
    Loader,
    samples_per_step=st.floats(1, 1e5),
    bytes_per_sample=st.floats(1, 1e8),
    prepare_s=st.floats(0, 0.1),
    storage=storages,
    workers=st.integers(0, 64),
    batches_per_step=st.integers(1, 8),
    nodes=st.integers(1, 16),
    loaders=st.integers(1, 8),
    samples_per_read=st.floats(1, 1e4),
    cores=st.none() | st.floats(1, 256),
    copy_s=st.floats(0, 1),
    pinned=st.booleans(),
    samples=st.floats(1, 1e9),
    capacity=st.floats(0, 1),
    policy=st.sampled_from(["lru", "no-eviction"]),
    cached=st.floats(0, 1),
    batch_s=st.floats(0, 1),
    keep_s=st.floats(0, 0.1),
    read_core_s=st.floats(0, 0.1),
)
shares = st.floats(0, 1)
times = st.floats(1e-3, 100)


@given(loaders, times, shares, st.integers(1, 64))
def test_more_of_anything_is_never_slower(loader: Loader, train_s: float, miss: float, more: int) -> None:
    step = loader.step_s(train_s, miss)
    known = loader.storage
    faster: list[dict[str, Any]] = [
        {"workers": loader.workers + more},
        {"storage": replace(known, bytes_per_s=known.bytes_per_s * (1 + more))},
        {"storage": replace(known, stream_bytes_per_s=known.stream_bytes_per_s * (1 + more))},
        {"storage": replace(known, latency_s=known.latency_s / (1 + more))},
        {"storage": replace(known, requests_per_s=None)},
        {"cores": None if loader.cores is None else loader.cores + more},
        {"prepare_s": loader.prepare_s / (1 + more)},
    ]
    for change in faster:
        assert replace(loader, **change).step_s(train_s, miss) <= step * (1 + 1e-12)


@given(loaders, times, shares, shares)
def test_cold_is_never_faster_than_hot(loader: Loader, train_s: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert loader.step_s(train_s, low) <= loader.step_s(train_s, high)
    assert loader.epoch_s(train_s, low, 100) <= loader.epoch_s(train_s, high, 100) * (1 + 1e-12)
    assert loader.step_s(train_s, low) >= train_s
    assert loader.epoch_s(train_s, low, 100) >= 100 * loader.step_s(train_s, low) * (1 - 1e-12)


@given(loaders, times, shares)
def test_a_faster_loader_is_not_waited_for(loader: Loader, train_s: float, miss: float) -> None:
    stall = loader.stall_s(train_s, miss)
    if loader.workers and loader.pinned:
        assert (stall > 0) == (loader.period_s(miss) > train_s)
    remedy = loader.remedy(train_s, miss)
    assert bool(remedy.needs) or stall == pytest.approx(0, abs=1e-8 * train_s)


@given(loaders, times, shares)
def test_the_remedy_hides_the_loader_and_less_does_not(loader: Loader, train_s: float, miss: float) -> None:
    remedy = loader.remedy(train_s, miss)
    if remedy.copy:
        return
    known = loader.storage
    healed = replace(
        loader,
        workers=remedy.workers or loader.workers,
        cores=loader.cores if remedy.cores is None else remedy.cores - loader.loaders,
        storage=replace(
            known,
            bytes_per_s=remedy.bytes_per_s or known.bytes_per_s,
            requests_per_s=remedy.requests_per_s or known.requests_per_s,
        ),
    )
    assert healed.stall_s(train_s, miss) <= 1e-6 * train_s
    if (count := remedy.workers_alone) is not None and count > 1:
        assert replace(loader, workers=count - 1).stall_s(train_s, miss) > 0


@given(loaders, st.floats(1.001, 200))
def test_misses_are_shares_and_fill_the_run(loader: Loader, epochs: float) -> None:
    found = loader.later_misses(epochs)
    assert sum(weight for weight, _ in found) == pytest.approx(epochs - 1)
    assert all(0 <= miss <= 1 for _, miss in found)
    assert 0 <= loader.first_miss() <= 1
    if loader.nodes == 1 and loader.cached == 0:
        assert found[0][1] <= loader.first_miss()


@given(shares)
def test_keeping_finds_more_than_dropping(capacity: float) -> None:
    assert 0 <= lru_hits(capacity) <= no_eviction_hits(capacity) <= 1
    assert first_lru_hits(capacity, 1.0) == pytest.approx(lru_hits(capacity), abs=1e-9)


@given(loaders, times)
def test_rates_for_staggering_are_the_loader_s_own(loader: Loader, train_s: float) -> None:
    rates = job_rates("a", loader, train_s)
    n = loader.samples_per_step
    assert rates.hot_s == pytest.approx(loader.step_s(train_s, 0.0) / n)
    assert 0 <= rates.overlap <= 1

    def by_rates(miss: float) -> float:  # as rates.py states it
        deep = max(rates.hot_s, miss * rates.storage_s)
        shallow = miss * max(rates.hot_s, rates.storage_s) + (1 - miss) * rates.hot_s
        return rates.overlap * deep + (1 - rates.overlap) * shallow

    for miss in (0.0, 0.5, 1.0):
        assert by_rates(miss) == pytest.approx(loader.step_s(train_s, miss) / n, rel=1e-6)


def test_rates_and_how_two_jobs_slow_each_other() -> None:
    rates = job_rates("imagenet", IMAGENET, TRAIN, epochs=3)
    assert rates.hot_s == pytest.approx(TRAIN / 2048)
    assert rates.storage_s == pytest.approx(110e3 / 1e9)
    assert rates.overlap == 1.0  # workers and queue hide reads up to the server's rate
    assert rates.samples == 1_281_167
    both = slowdowns_of([IMAGENET, IMAGENET], [TRAIN, TRAIN], [rates, rates])
    assert both.storage == ((1.0, pytest.approx(2.0)), (pytest.approx(2.0), 1.0))
    assert both.hot == ((1.0, 1.0), (1.0, 1.0))  # 2 x 6.1 core-seconds in 0.14 s: 88 of 120 cores
    lossy = replace(IMAGENET, storage=replace(NFS, reader_efficiency=0.8))
    assert slowdowns_of([lossy, lossy], [TRAIN, TRAIN], [rates, rates]).storage[0][1] == pytest.approx(2.5)
    slow = replace(IMAGENET, prepare_s=10e-3)  # 20.5 core-seconds and 120 cores: 0.32 s a step, with 64 of them busy
    rates = job_rates("slow", slow, TRAIN)
    crowd = slowdowns_of([slow, slow], [TRAIN, TRAIN], [rates, rates])
    assert crowd.hot[0][1] == pytest.approx(2 * 64 / 120)
    # its workers need 256 x 11.275 ms / 8 = 0.361 s for a step of misses, so the server is busy for 62 % of it
    assert crowd.storage[0][1] == pytest.approx(2 * 0.22528 / 0.3608)
    with pytest.raises(IngestError, match="job 'a' has no number of samples"):
        job_rates("a", replace(IMAGENET, samples=None), TRAIN)


def test_every_preparation_has_a_source() -> None:
    assert all(p.source.split()[0].strip(":") in ("measured", "assumed") or "Measured" in p.source
               for p in PREPARATIONS.values())  # fmt: skip
    assert PREPARATIONS["jpeg"].seconds(110e3) == pytest.approx(3.35e-3)
