"""What loading costs once a sample's bytes are there: measured with real pictures in memory and a real DataLoader."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_time.errors import IngestError
from precision_time.ingest.storage.file_cache import FileCache
from precision_time.ingest.storage.index import Index, read_index
from precision_time.ingest.storage.object_reader import open_reader
from precision_time.ingest.storage.reading import Pictures, decode

BUDGET_S = 6.0
SAMPLES = 64
"""Pictures kept in memory; they are decoded again and again."""
AHEAD = 6
"""Batches that lie ready when it is measured what it takes to receive one."""


@dataclass(frozen=True, slots=True)
class PreparationProbe:
    """Seconds on this machine, for one batch size.

    worker_s    of one worker, a sample: decode, augment, batch and hand over; `decode_ms` of a job's data section
    inline_s    the same without workers, in the training process
    batch_s     of worker_s and inline_s, per batch whatever its size (to ask for a batch, to open shared memory)
    receive_s   of the training process, to receive and touch a batch that lies ready
    start_s     to start a worker
    hit_s       to read a sample from the file cache; store_s  to keep one there
    """

    batch_size: int
    worker_s: float
    inline_s: float
    batch_s: float
    receive_s: float
    start_s: float
    hit_s: float
    store_s: float

    def __str__(self) -> str:
        return "\n".join([
            f"a worker prepares {1 / self.worker_s:,.0f} samples per second (decode_ms: {self.worker_s * 1e3:.3g}), in "
            f"batches of {self.batch_size}; {self.batch_s * 1e3:.2g} ms of each batch do not depend on its size",
            f"the training process without workers: {1 / self.inline_s:,.0f} samples per second",
            f"to receive a batch {self.receive_s * 1e3:.2g} ms, to start a worker {self.start_s * 1e3:.2g} ms, "
            f"a hit of the cache {self.hit_s * 1e6:.0f} us, to keep a sample there {self.store_s * 1e6:.0f} us",
        ])  # fmt: skip


class _InMemory(Pictures):
    """Pictures whose files are in memory, as long a data set as is wanted."""

    def __init__(self, root: str, length: int) -> None:
        index, reader = read_index(root), open_reader(root)
        kept = min(SAMPLES, len(index))
        try:
            self._content = [reader.read(name) for name in index.names[:kept]]
        finally:
            reader.close()
        super().__init__(root, index=index.part(0, kept))
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return super().__getitem__(number % len(self._content))

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
        part_s = budget_s / 6
        inline_s = _rate(pictures, batch_size, 0, part_s)[0] / batch_size
        worker_batch_s, start_s = _rate(pictures, batch_size, 1, 2 * part_s)
        quarter = max(batch_size // 4, 1)
        small_batch_s, _ = _rate(pictures, quarter, 1, part_s)
        receive_s = _receive_s(pictures, batch_size, worker_batch_s, part_s)
    finally:
        torch.set_num_threads(threads)
    hit_s, store_s = _cache_s(pictures, cache_folder)
    # worker seconds of a batch are a + b size: two sizes give a.
    fixed = small_batch_s - (worker_batch_s - small_batch_s) / max(batch_size - quarter, 1) * quarter
    return PreparationProbe(
        batch_size=batch_size,
        worker_s=worker_batch_s / batch_size,
        inline_s=inline_s,
        batch_s=max(fixed, 0.0) if batch_size > quarter else 0.0,
        receive_s=receive_s,
        start_s=max(start_s - worker_batch_s, 0.0),
        hit_s=hit_s,
        store_s=store_s,
    )


def _loader(pictures: _InMemory, batch_size: int, workers: int, ahead: int | None = None) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        pictures,
        batch_size=batch_size,
        sampler=range(2**30),
        num_workers=workers,
        prefetch_factor=ahead,
    )
    return iter(loader)


def _rate(pictures: _InMemory, batch_size: int, workers: int, seconds: float) -> tuple[float, float]:
    """Mean seconds from batch to batch while nothing is done with them, and seconds to the first.

    Means, since an epoch is a sum: what happens now and then is part of it.
    """
    begun = time.perf_counter()
    batches = _loader(pictures, batch_size, workers)
    next(batches)
    first_s = time.perf_counter() - begun
    for _ in range(2 * workers):  # what was prepared ahead
        next(batches)
    count, filled = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds or count < 3:
        next(batches)
        count += 1
    return (time.perf_counter() - filled) / count, first_s


def _receive_s(pictures: _InMemory, batch_size: int, batch_s: float, seconds: float) -> float:
    """Mean seconds to receive a batch that lies ready and touch all of it, beyond touching it in own memory."""
    batches = _loader(pictures, batch_size, 1, AHEAD)
    own = next(batches)[0].clone()
    end = time.perf_counter() + seconds
    found: list[float] = []
    while time.perf_counter() < end or not found:
        time.sleep(1.5 * AHEAD * batch_s)
        for _ in range(AHEAD - 2):
            begun = time.perf_counter()
            batch = next(batches)[0]
            batch.sum()
            middle = time.perf_counter()
            own.sum()
            found.append(middle - begun - (time.perf_counter() - middle))
    return max(statistics.mean(found), 0.0)


def _cache_s(pictures: _InMemory, folder: str | Path | None) -> tuple[float, float]:
    """Mean seconds of a hit and of keeping a missed sample, with a picture decoded before each as a worker does.

    In a loop of their own both would take a third of the time, from warm processor caches.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="precision-time-cache-") as made:
        cache = FileCache(os.path.join(made, "cache"))
        found = []
        for _ in range(2):
            gone = []
            for number, content in enumerate(pictures._content):
                decode(content)
                begun = time.perf_counter()
                cache.get(str(number), lambda _, content=content: content)  # type: ignore[misc]
                gone.append(time.perf_counter() - begun)
            found.append(statistics.mean(gone))
    return found[1], found[0]
