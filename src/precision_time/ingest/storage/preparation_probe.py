"""Seconds of loading apart from storage, measured with real pictures in memory and a real DataLoader."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from precision_time.child import end_with_parent, leave_interrupts_to_parent
from precision_time.errors import IngestError
from precision_time.ingest.storage.file_cache import FileCache
from precision_time.ingest.storage.index import Index, read_index
from precision_time.ingest.storage.object_reader import ObjectReader, open_reader
from precision_time.ingest.storage.reading import Pictures, decode

BUDGET_S = 6.0
SAMPLES = 64
"""Pictures kept in memory and decoded repeatedly."""
AHEAD = 6
"""Batches that are ready when receiving one is measured."""


@dataclass(frozen=True, slots=True)
class PreparationProbe:
    """Seconds on this machine, for one batch size.

    worker_s    of one worker, a sample: decode, augment, batch and hand over; `decode_ms` of a job's data section
    inline_s    the same without workers, in the training process
    batch_s     of worker_s and inline_s, per batch whatever its size (to ask for a batch, to open shared memory)
    worker_end_s, inline_end_s  of a batch, from its last sample to the next batch's first: nothing is read meanwhile
    handoff_s   what worker_end_s is more where a worker prepares one batch ahead and must wait for its next order
    receive_s   of the training process, to receive and touch a batch that lies ready
    start_s     to start a worker
    hit_s       to read a sample from the file cache
    keep_s      what a missed sample takes beyond the read and a hit: to keep it, and to decode after all that
    read_core_s of a read, what keeps the reader's core busy
    """

    batch_size: int
    worker_s: float
    inline_s: float
    batch_s: float
    worker_end_s: float
    inline_end_s: float
    handoff_s: float
    receive_s: float
    start_s: float
    hit_s: float
    keep_s: float
    read_core_s: float

    def __str__(self) -> str:
        return "\n".join(
            [
                f"a worker prepares {1 / self.worker_s:,.0f} samples per second (decode_ms: {self.worker_s * 1e3:.3g}) "
                f"in batches of {self.batch_size}; {self.batch_s * 1e3:.2g} ms of each batch do not depend on its size",
                f"the training process without workers: {1 / self.inline_s:,.0f} samples per second",
                f"to receive a batch {self.receive_s * 1e3:.2g} ms, to start a worker {self.start_s * 1e3:.2g} ms, "
                f"a hit of the cache {self.hit_s * 1e6:.0f} us, to keep a sample there {self.keep_s * 1e6:.0f} us "
                f"(keep_ms: {self.keep_s * 1e3:.3g})",
            ]
        )


class _InMemory(Pictures):
    """A data set of `length` pictures from files in memory; labels are the times at which decoding began and ended."""

    def __init__(self, root: str, length: int) -> None:
        index, reader = read_index(root), open_reader(root)
        self.names = index.names
        count = min(SAMPLES, len(index))
        try:
            self._content = [reader.read(name) for name in index.names[:count]]
        finally:
            reader.close()
        super().__init__(root, index=index.part(0, count))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        start = time.monotonic()
        picture, _ = super().__getitem__(number % len(self._content))
        return picture, (start, time.monotonic())

    def read(self, number: int) -> bytes:
        return self._content[number]

    @property
    def files(self) -> Index:
        return self.index


def probe_preparation(
    root: str, batch_size: int = 16, cache_folder: str | Path | None = None, budget_s: float = BUDGET_S
) -> PreparationProbe:
    """Measure for about `budget_s` seconds; a temporary cache is made in `cache_folder`."""
    if batch_size < 1:
        raise IngestError(f"batch_size of the preparation probe is {batch_size}; give at least 1")
    import torch

    pictures = _InMemory(root, 2**30)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        part_s = budget_s / 8
        inline = _batch_times(pictures, batch_size, 0, part_s)
        worker = _batch_times(pictures, batch_size, 1, 2 * part_s)
        waiting = _batch_times(pictures, batch_size, 1, part_s, ahead=1)
        quarter = max(batch_size // 4, 1)
        small = _batch_times(pictures, quarter, 1, part_s)
        receive_s = _receive_s(pictures, batch_size, worker.batch_s, part_s)
        missing = _missing(root, pictures, cache_folder, 2 * part_s)
    finally:
        torch.set_num_threads(threads)
    # worker seconds of a batch are a + b size: two sizes give a.
    fixed = small.batch_s - (worker.batch_s - small.batch_s) / max(batch_size - quarter, 1) * quarter
    return PreparationProbe(
        batch_size=batch_size,
        worker_s=worker.batch_s / batch_size,
        inline_s=inline.batch_s / batch_size,
        batch_s=max(fixed, 0.0) if batch_size > quarter else 0.0,
        worker_end_s=worker.end_s,
        inline_end_s=inline.end_s,
        handoff_s=max(waiting.end_s - worker.end_s, 0.0),
        receive_s=receive_s,
        start_s=max(worker.first_s - worker.batch_s, 0.0),
        hit_s=missing.hit_s,
        keep_s=missing.keep_s,
        read_core_s=missing.read_core_s,
    )


@dataclass(frozen=True, slots=True)
class _BatchTimes:
    """Mean seconds per batch, part of these between a batch's last sample and the next one's first, and seconds to the
    first batch.
    """

    batch_s: float
    end_s: float
    first_s: float


def _loader(pictures: _InMemory, batch_size: int, workers: int, ahead: int | None = None) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        pictures,
        batch_size=batch_size,
        sampler=range(2**30),
        num_workers=workers,
        prefetch_factor=ahead,
        worker_init_fn=partial(_begin_worker, os.getpid()),
    )
    return iter(loader)


def _begin_worker(parent: int, _number: int) -> None:
    leave_interrupts_to_parent()
    end_with_parent(parent)


def _batch_times(
    pictures: _InMemory, batch_size: int, workers: int, seconds: float, ahead: int | None = None
) -> _BatchTimes:
    """Times of batches that are not used. Means, because an epoch is a sum with all its occasional delays."""
    start = time.perf_counter()
    batches = _loader(pictures, batch_size, workers, ahead)
    next(batches)
    first_s = time.perf_counter() - start
    for _ in range(2 * workers):  # what was prepared ahead
        next(batches)
    last: float | None = None
    count, ends, filled = 0, 0.0, time.perf_counter()
    while time.perf_counter() < start + seconds or count < 3:
        _, (starts, stops) = next(batches)
        if last is not None:
            ends += float(starts[0]) - last
        last = float(stops[-1])
        count += 1
    return _BatchTimes((time.perf_counter() - filled) / count, max(ends / (count - 1), 0.0), first_s)


def _receive_s(pictures: _InMemory, batch_size: int, batch_s: float, seconds: float) -> float:
    """Mean seconds to receive a ready batch and read all of it, minus reading a batch in private memory."""
    batches = _loader(pictures, batch_size, 1, AHEAD)
    private = next(batches)[0].clone()
    end = time.perf_counter() + seconds
    excess: list[float] = []
    while time.perf_counter() < end or not excess:
        time.sleep(1.5 * AHEAD * batch_s)
        for _ in range(AHEAD - 2):
            start = time.perf_counter()
            batch = next(batches)[0]
            batch.sum()
            middle = time.perf_counter()
            private.sum()
            excess.append(middle - start - (time.perf_counter() - middle))
    return max(statistics.mean(excess), 0.0)


@dataclass(frozen=True, slots=True)
class _Missing:
    """Mean seconds, as in PreparationProbe."""

    hit_s: float
    keep_s: float
    read_core_s: float


def _missing(root: str, pictures: _InMemory, folder: str | Path | None, seconds: float) -> _Missing:
    """Times of samples processed as in a worker: cache look-up, read on a miss, store, decode.

    After a miss the processor's caches are cold and decoding takes longer; that counts as part of the miss. The read
    itself does not count, since it depends on the storage.
    """
    hits: list[float] = []
    hit_decodes: list[float] = []
    misses: list[float] = []
    cores: list[float] = []
    reader = open_reader(root)
    end = time.perf_counter() + seconds
    try:
        reader.read(pictures.names[0])  # the connection
        with tempfile.TemporaryDirectory(dir=folder, prefix="precision-time-cache-") as folder_name:
            cache = FileCache(os.path.join(folder_name, "cache"))
            turn = 0
            while not turn or time.perf_counter() < end:
                for number in range(len(pictures.files)):
                    key, read = f"{turn} {number}", _Timed(reader, pictures.names[number])
                    start = time.perf_counter()
                    content = cache.get(key, read)
                    decode(content)
                    misses.append(time.perf_counter() - start - read.seconds)
                    cores.append(read.core_s)
                for number in range(len(pictures.files)):
                    start = time.perf_counter()
                    content = cache.get(f"{turn} {number}", reader.read)
                    middle = time.perf_counter()
                    decode(content)
                    hits.append(middle - start)
                    hit_decodes.append(time.perf_counter() - middle)
                turn += 1
    finally:
        reader.close()
    hit_s = statistics.mean(hits)
    return _Missing(
        hit_s, max(statistics.mean(misses) - hit_s - statistics.mean(hit_decodes), 0.0), statistics.mean(cores)
    )


class _Timed:
    """A read that records its wall time and its core time."""

    def __init__(self, reader: ObjectReader, name: str) -> None:
        self._reader, self._name = reader, name
        self.seconds = self.core_s = 0.0

    def __call__(self, _: str) -> bytes:
        start, busy = time.perf_counter(), time.thread_time()
        content = self._reader.read(self._name)
        self.seconds, self.core_s = time.perf_counter() - start, time.thread_time() - busy
        return content
